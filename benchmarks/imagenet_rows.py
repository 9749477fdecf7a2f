"""The table of `python -m benchmarks.imagenet`: unit costs, the synthetic stream against them, ImageNet from them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.imagenet_costs import PARTS, Costs, Workload
from benchmarks.limits import Machine
from benchmarks.rows import Row
from circle.ensemble import IMAGES_PER_TILE

IMAGES, TESTS, CLASSES, TASKS = 1_281_167, 50_000, 1_000, 500  # ImageNet-1k
MACHINES = (1, 8, 64)
SPACINGS = (1, 50)  # tasks between evaluations of the extrapolations
REST = "all else"


def imagenet(evaluate_every: int = 1) -> Workload:
    return Workload(IMAGES, TESTS, CLASSES, TASKS, evaluate_every)


def words(seconds: float) -> str:
    """A time as people say it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def size_words(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def unit_rows(costs: Costs, machine: Machine) -> Iterator[Row]:
    """Each unit cost at the size that it has in ImageNet, against the machine's rates where there is a flop count."""
    size, name = costs.size, "unit costs"
    yield Row(name, "decoding, one image", f"{1e3 * costs.decoding:.2f} ms")
    tile = costs.extraction.seconds(IMAGES_PER_TILE) / IMAGES_PER_TILE
    few = costs.extraction.seconds(8) / 8
    yield Row(
        name, f"extraction, one image of {IMAGES_PER_TILE}, all heads", f"{1e3 * tile:.2f} ms (of 8: {1e3 * few:.2f})"
    )
    each = costs.update.seconds(1024) / 1024
    yield Row(
        name,
        f"update, one sample of 1,024, one head of {size:,} values",
        f"{1e3 * each:.3f} ms (each product {1e3 * costs.update.fixed:.2g} ms more)",
        "one triangle at the float64 GEMM rate",
        machine.seconds(double_flops=size * (size + 1)) / each,
    )
    closed = costs.closed_form.seconds(CLASSES)
    yield Row(
        name,
        f"closed form, one head, {CLASSES:,} classes",
        f"{closed:.3g} s = {costs.closed_form.fixed:.3g} s + {1e3 * costs.closed_form.each:.3g} ms a class",
        "scatter, Cholesky and solutions at the float64 GEMM rate",
        machine.seconds(double_flops=size**3 / 3 + 4 * size**2 * CLASSES) / closed,
    )
    score = costs.scoring.in_calls(CLASSES, 1024, 1024) / 1024
    yield Row(
        name,
        f"scoring, one image of 1,024, {CLASSES:,} classes, all heads",
        f"{1e3 * score:.3f} ms",
        "one product at the float64 GEMM rate",
        machine.seconds(double_flops=2 * costs.heads * size * CLASSES) / score,
    )
    yield Row(name, f"summing, own work, {CLASSES:,} classes, all heads", f"{costs.summing.seconds(CLASSES):.3g} s")
    yield Row(name, "second moments, all heads", size_words(costs.heads * costs.moment_bytes))
    yield Row(name, "count and sums of a class, all heads", f"{costs.heads * costs.class_bytes / 1e3:.0f} kB")


def extrapolated(costs: Costs) -> Iterator[Row]:
    """ImageNet on one machine and on many, for each spacing of the evaluations."""
    for every in SPACINGS:
        work = imagenet(every)
        name = f"ImageNet-1k, {len(work.evaluated)} evaluations"
        against = " / ".join(map(str, MACHINES)) + " machines"
        totals = [costs.total(work, machines) for machines in MACHINES]
        for part in PARTS:
            yield Row(name, part, " / ".join(words(total[part]) for total in totals), against)
        sums = [sum(total.values()) for total in totals]
        yield Row(name, "total", " / ".join(map(words, sums)), against + "; ratio: how much faster", sums[0] / sums[-1])
        if costs.heads > 1:
            shared = [sum(costs.total(work, machines, heads_shared=True).values()) for machines in MACHINES]
            yield Row(
                name,
                "total, if machines shared out the heads",
                " / ".join(map(words, shared)),
                against + "; ratio: how much faster",
                shared[0] / shared[-1],
            )
    work = imagenet()
    for phase, count in costs.memory(work).items():
        yield Row("ImageNet-1k, memory", phase, size_words(count), "beside the program and its extractors")
    yield Row("ImageNet-1k, memory", "features of test images, in all of these", size_words(costs.test_bytes(work)))


def compared(costs: Costs, work: Workload, seconds: dict[str, float], name: str) -> Iterator[Row]:
    """What the stream took against what the formula says of it."""
    expected = costs.total(work)
    for part in PARTS:
        if expected[part]:
            ratio = seconds[part] / expected[part]
            yield Row(name, part, f"{seconds[part]:.3g} s", f"predicted {expected[part]:.3g} s", ratio)
    yield Row(name, REST, f"{seconds[REST]:.3g} s", "predicted nothing")
    whole, predicted = sum(seconds.values()), sum(expected.values())
    yield Row(name, "total", f"{whole:.3g} s", f"predicted {predicted:.3g} s", whole / predicted)


def corrected(costs: Costs, work: Workload, seconds: dict[str, float]) -> Iterator[Row]:
    """ImageNet on one machine, each part multiplied by what it took of its prediction in the stream.

    Parts weigh less or more in ImageNet than in the stream, so the ratio of the totals is another one.
    """
    expected = costs.total(work)
    ratios = {part: seconds[part] / expected[part] for part in PARTS if expected[part]}
    for every in SPACINGS:
        parts = costs.total(imagenet(every))
        plain, right = sum(parts.values()), sum(ratios.get(part, 1.0) * each for part, each in parts.items())
        name = f"ImageNet-1k, {len(imagenet(every).evaluated)} evaluations"
        what = "total on one machine, each part times its ratio in the stream"
        yield Row(name, what, words(right), f"formula alone: {words(plain)}", right / plain)


def memory_rows(costs: Costs, work: Workload, kept: int, before: int, peak: int) -> Iterator[Row]:
    """The statistics' bytes and the peak of the process, against what the formula says."""
    name = "synthetic stream, memory"
    expected = costs.statistics_bytes(work.classes)
    yield Row(name, "statistics", size_words(kept), f"predicted {size_words(expected)}", kept / expected)
    phase, more = max(costs.memory(work).items(), key=lambda each: each[1])
    predicted = before + more
    against = f"predicted {size_words(predicted)}: {size_words(before)} of program, {size_words(more)} in {phase}"
    yield Row(name, "peak memory", size_words(peak), against, peak / predicted)
