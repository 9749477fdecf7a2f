"""Which class comes when: the class order, its split into tasks, and the stream of tasks that the benchmark walks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from circle.data.datasets import Dataset
from circle.data.images import Images, Subset
from circle.errors import CircleError, counted

Label = TypeVar("Label", bound=Hashable)


def class_order(classes: Sequence[Label], class_order_seed: int = 0) -> list[Label]:
    """The classes in the order in which the stream brings them.

    A permutation of ``classes`` drawn from ``numpy.random.Generator(PCG64(class_order_seed))``. It depends on
    the order in which the classes are given (so give them sorted) and on nothing else: the model's ``seed``
    never enters here.

    >>> class_order(["ant", "bee", "cow", "dog"])
    ['cow', 'ant', 'bee', 'dog']
    """
    if len(set(classes)) != len(classes):
        repeated = next(label for index, label in enumerate(classes) if label in classes[:index])
        raise CircleError(f"class {repeated!r} is listed twice: expected every class once")
    if class_order_seed < 0:
        raise CircleError(f"class_order_seed = {class_order_seed}: expected 0 or more")
    generator = np.random.Generator(np.random.PCG64(class_order_seed))
    return [classes[position] for position in generator.permutation(len(classes))]


def split_tasks(classes: Sequence[Label], tasks: int, class_order_seed: int = 0) -> list[list[Label]]:
    """The classes of each task: the class order cut into ``tasks`` equal parts.

    >>> split_tasks(["ant", "bee", "cow", "dog"], tasks=2)
    [['cow', 'ant'], ['bee', 'dog']]
    """
    if tasks < 1 or not classes or len(classes) % tasks:
        divisors = [str(number) for number in range(1, len(classes) + 1) if len(classes) % number == 0]
        expected = f"expected one of {', '.join(divisors)}" if divisors else "expected at least one class"
        raise CircleError(f"{counted(len(classes), 'class')} cannot be split into {tasks} equal tasks: {expected}")
    order = class_order(classes, class_order_seed)
    size = len(order) // tasks
    return [order[start : start + size] for start in range(0, len(order), size)]


def task_sizes(tasks: str | int, classes: int) -> list[int]:
    """Numbers of classes per task from a specification.

    ``"20"`` is 20 equal tasks. ``"50+50x1"`` is a first task of 50 classes and then 50 tasks of one (a warm start);
    the parts must add up to all classes.

    >>> task_sizes("4", 12), task_sizes("6+3x2", 12)
    ([3, 3, 3, 3], [6, 2, 2, 2])
    """
    text = str(tasks)
    if text.isdecimal():
        return [len(task) for task in split_tasks(range(classes), int(text))]
    sizes: list[int] = []
    for part in text.split("+"):
        count, _, size = part.rpartition("x")
        if not size.isdecimal() or not (count or "1").isdecimal():
            raise CircleError(f"tasks {text!r}: expected a number such as 20, or sizes such as 50+50x1")
        sizes += [int(size)] * int(count or 1)
    if sum(sizes) != classes or 0 in sizes:
        raise CircleError(
            f"tasks {text!r} hold {counted(sum(sizes), 'class')}: expected all {classes}, at least one in each task"
        )
    return sizes


@dataclass
class Stream:
    """A data set in the order in which its classes come.

    Attributes
    ----------
    dataset
        The data set.
    order
        Its labels in class order.
    names
        The names of the classes in that order.
    test_images
        How many test images each of them has.

    Examples
    --------
    >>> from circle.data.datasets import load_dataset
    >>> stream = Stream.of(load_dataset("digits"), class_order_seed=0)
    >>> images, labels = stream.view(stream.dataset.train, 0, 2)
    >>> stream.names[:2], images.shape, sorted(set(labels.tolist()))
    (['4', '6'], (254, 32, 32, 1), [4, 6])
    """

    dataset: Dataset
    order: list[int]
    names: list[str] = field(init=False)
    test_images: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [self.dataset.classes[index] for index in self.order]
        counts = np.bincount(self.dataset.test.labels, minlength=len(self.order))
        self.test_images = counts[self.order].tolist()
        if 0 in self.test_images:
            raise CircleError(
                f"{self.dataset.name}: class {self.names[self.test_images.index(0)]!r} has no test images"
            )

    @classmethod
    def of(cls, dataset: Dataset, class_order_seed: int) -> Stream:
        return cls(dataset, class_order(range(len(dataset.classes)), class_order_seed))

    def view(self, images: Images, start: int, stop: int) -> tuple[Subset, np.ndarray]:
        """Images of the classes start to stop of the order, as they stand in the set, and their labels."""
        indices = np.flatnonzero(np.isin(images.labels, self.order[start:stop]))
        return images.subset(indices), images.labels[indices]


def boundaries(tasks: Sequence[str], classes: int) -> list[int]:
    """Numbers of classes after which some split ends a task.

    >>> boundaries(["2", "4"], 8)
    [2, 4, 6, 8]
    """
    return sorted({int(end) for split in tasks for end in np.cumsum(task_sizes(split, classes))})
