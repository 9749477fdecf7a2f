"""What a class-incremental stream costs, from the costs of its pieces: arithmetic alone, nothing is measured here.

With N images of C classes to learn in T tasks, V test images, R machines, k heads of D values, m = ceil(N / (T R))
images of a task on each machine, and c classes and v = V c / C test images at an evaluation, of which a machine scores
v' = ceil(v / R):

    decoding      (T m + V / R) d                                        d: an image
    extraction    T e(m) + e(V / R)                                      e(n) = ceil(n / 256) e_0 + n e_1
    update        k T u(m)                                               u(n) = ceil(n / 1024) u_0 + n u_1
    closed forms  k sum f(c)                                             f(c) = f_0 + f_1 c
    scoring       sum (ceil(v' / 1024) (s_0 + s_1 c) + v' (s_2 + s_3 c))
    summing       sum a(c), if R > 1                                     a(c) = a_0 + a_1 c
    network       sum (2 (R - 1) / R B(c) + 8 (R - 1) (v c / R + v)) / w

The sums run over the evaluations. Pieces have a fixed part because work comes in calls: a second moment of D x D is
gone through once however few samples are added. B(c) is what is summed over the machines, 8 bytes for each count, sum
and entry of one triangle; a ring sends it 2 (R - 1) / R times. The scores come back to the first machine, which has
told the others the numbers of the images. w is the network's rate, an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from circle.ensemble import IMAGES_PER_TILE
from circle.method import MAX_BATCH
from circle.statistics import SAMPLES_PER_PRODUCT
from circle.statistics.second_moment import SecondMoment

NUMBER = 8  # bytes of a float64 or int64
POSITION = 2  # bytes of a feature on its grid
PARTS = ("decoding", "extraction", "update", "closed forms", "scoring", "summing", "network")


def fitted(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Coefficients, none below zero, of seconds_i ~ sum_j c_j terms_ij with the least squared relative errors.

    Relative ones, because small and large measurements are to be met alike.
    """
    matrix = np.asarray(terms, dtype=np.float64)
    units = matrix.max(0)
    found, _ = nnls(matrix / units / np.asarray(seconds)[:, None], np.ones(len(seconds)))
    return (found / units).tolist()


@dataclass(frozen=True)
class Line:
    """Seconds of a call that does so much: fixed + each x amount."""

    fixed: float
    each: float

    @classmethod
    def through(cls, measured: dict[int, float]) -> Line:
        """The line nearest to seconds by amount."""
        return cls(*fitted([(1.0, amount) for amount in measured], list(measured.values())))

    def seconds(self, amount: float) -> float:
        return self.fixed + self.each * amount

    def in_calls(self, amount: int, most: int) -> float:
        """Seconds of so much in as many calls as it takes if none may do more than ``most``."""
        return self.fixed * math.ceil(amount / most) + self.each * amount


@dataclass(frozen=True)
class Surface:
    """Seconds of scoring v images for c classes in one call: fixed + of_class c + of_image v + of_both c v."""

    fixed: float
    of_class: float
    of_image: float
    of_both: float

    @classmethod
    def through(cls, measured: dict[tuple[int, int], float]) -> Surface:
        """The surface nearest to seconds by (classes, images)."""
        terms = [(1.0, classes, images, classes * images) for classes, images in measured]
        return cls(*fitted(terms, list(measured.values())))

    def in_calls(self, classes: int, images: int, most: int) -> float:
        calls = math.ceil(images / most)
        return calls * (self.fixed + self.of_class * classes) + images * (self.of_image + self.of_both * classes)


@dataclass(frozen=True)
class Workload:
    """A stream: images to learn and to be tested on, evenly spread over classes, which come in equal tasks."""

    images: int
    tests: int
    classes: int
    tasks: int
    evaluate_every: int = 1

    @property
    def evaluated(self) -> list[int]:
        """Numbers of classes seen at each evaluation: after every so many tasks, and after the last."""
        ends = range(1, self.tasks + 1)
        return [end * self.classes // self.tasks for end in ends if end % self.evaluate_every == 0 or end == self.tasks]

    def tests_of(self, classes: int) -> int:
        """Test images of the first so many classes."""
        return self.tests * classes // self.classes

    def share_of_task(self, machines: int) -> int:
        """Images of a task for the machine that has most."""
        return math.ceil(self.images / self.tasks / machines)


@dataclass(frozen=True)
class Costs:
    """Unit costs in seconds, and sizes in bytes; the formulas stand above."""

    heads: int
    size: int
    pixels: int  # bytes of a decoded image
    decoding: float  # an image
    extraction: Line  # a call of so many images, all heads
    update: Line  # a product of so many samples into the statistics of one head
    closed_form: Line  # one head of so many classes
    scoring: Surface  # all heads
    summing: Line  # what a machine does itself to add up the statistics of so many classes, all heads
    network: float  # bytes a second, assumed

    def total(self, work: Workload, machines: int = 1, *, heads_shared: bool = False) -> dict[str, float]:
        """Seconds of each part on so many machines.

        Every machine computes all closed forms, which is what the program does; with ``heads_shared`` each computes
        its share of the heads, which it could.
        """
        images = work.share_of_task(machines)
        tests = math.ceil(work.tests / machines)
        learning = work.tasks * self.extraction.in_calls(images, IMAGES_PER_TILE)
        heads = math.ceil(self.heads / machines) if heads_shared else self.heads
        parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        parts["decoding"] = (work.tasks * images + tests) * self.decoding
        parts["extraction"] = learning + self.extraction.in_calls(tests, IMAGES_PER_TILE)
        parts["update"] = self.heads * work.tasks * self.update.in_calls(images, SAMPLES_PER_PRODUCT)
        for classes in work.evaluated:
            seen = work.tests_of(classes)
            parts["closed forms"] += heads * self.closed_form.seconds(classes)
            parts["scoring"] += self.scoring.in_calls(classes, math.ceil(seen / machines), MAX_BATCH)
            if machines > 1:
                parts["summing"] += self.summing.seconds(classes)
                sent = 2 * (machines - 1) / machines * self.summed_bytes(classes)
                answers = NUMBER * (machines - 1) * (seen * classes / machines + seen)
                parts["network"] += (sent + answers) / self.network
        return parts

    def summed_bytes(self, classes: int) -> int:
        """B(c): counts, orphans, and of each head the sums and one triangle of the second moment."""
        each = classes * self.size + self.size * (self.size + 1) // 2
        return NUMBER * (classes + self.heads + self.heads * each)

    def statistics_bytes(self, classes: int) -> int:
        """What is kept in memory: second moments in strips, counts and sums, and samples that wait for a product."""
        return self.heads * (
            self.moment_bytes + classes * self.class_bytes + POSITION * SAMPLES_PER_PRODUCT * self.size
        )

    @property
    def moment_bytes(self) -> int:
        """The second moment of one head."""
        return SecondMoment.bytes_of(self.size)

    @property
    def class_bytes(self) -> int:
        """Count and sums of one class for one head."""
        return NUMBER * (1 + self.size)

    def test_bytes(self, work: Workload) -> int:
        """Features of all test images, kept from the beginning to the end."""
        return POSITION * work.tests * self.heads * self.size

    def memory(self, work: Workload) -> dict[str, int]:
        """Bytes beside those of the program itself, in each phase of a run on one machine; the largest is the peak.

        Rows of classes grow by a quarter at a time. Images are bytes in slices, then float32 in two copies. A closed
        form has the covariance, its factor and a copy of that, and some five matrices of the size of the sums.
        """
        kept = self.statistics_bytes(work.classes * 5 // 4) + self.test_bytes(work)
        weights = 4 * self.heads * work.classes * self.size
        images = work.share_of_task(1)
        return {
            "test features": self.test_bytes(work) + self._images_bytes(min(work.tests, IMAGES_PER_TILE)),
            "learning": kept + weights + self._images_bytes(min(images, MAX_BATCH)),
            "closed forms": kept + weights + NUMBER * (3 * self.size**2 + 5 * work.classes * self.size),
            "scoring": kept + weights + NUMBER * 2 * work.tests * work.classes,
        }

    def _images_bytes(self, count: int) -> int:
        return self.pixels * (count + 2 * 4 * min(count, IMAGES_PER_TILE))
