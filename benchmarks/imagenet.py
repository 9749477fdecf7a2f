"""ImageNet-1k in 500 tasks: costs measured here, extrapolated to many machines, and checked by a synthetic stream.

python -m benchmarks.imagenet --preset fast-224 --images-per-class 4 --evaluate-every 10

The stream has all classes, all tasks and statistics of full size, but few images, which are noise in JPEG files of the
usual size: read, decoded, learned and scored by the code that a benchmark runs. What its parts take is compared with
what `imagenet_costs` says of this stream; the same formula says what ImageNet would take. docs/imagenet.md explains.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import platform
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from benchmarks.clock import PROCESSOR, WALL, Clock
from benchmarks.imagenet_costs import PARTS, Workload
from benchmarks.imagenet_pair import pair_rows
from benchmarks.imagenet_rows import (
    CLASSES,
    MACHINES,
    REST,
    SPACINGS,
    TASKS,
    compared,
    corrected,
    extrapolated,
    imagenet,
    memory_rows,
    size_words,
    unit_rows,
)
from benchmarks.imagenet_units import drawn_images, measure, say, write_photographs
from benchmarks.limits import Machine, memory_now
from benchmarks.rows import Row, show, write
from circle import CircleClassifier, __version__, list_presets
from circle.data.datasets import Dataset
from circle.data.folders import FileImages
from circle.data.tasks import Stream
from circle.ensemble import IMAGES_PER_TILE
from circle.method import CircleMethod, Task, predict
from circle.statistics import Statistics

LARGE = 4_096  # values from which closed forms take so long that they are timed at few numbers of classes
POINTS = {False: (2, 250, 500, 1_000), True: (2, 1_000)}  # those numbers, by whether a head is large


def run(model: CircleClassifier, stream: Stream, work: Workload) -> Clock:
    """Take a prepared model through the stream as a benchmark would; the times of each part."""
    clock, method = Clock(*PARTS, REST), CircleMethod(model)
    train, test = stream.dataset.train, stream.dataset.test
    watched = [
        (FileImages, "_read", "decoding"),
        (CircleClassifier, "partial_fit", "extraction"),
        (CircleClassifier, "features", "extraction"),
        (Statistics, "update", "update"),
        (Statistics, "flush", "update"),
        (CircleClassifier, "for_prediction", "closed forms"),
        (CircleMethod, "scores", "scoring"),
    ]
    with ExitStack() as stack:
        for each in watched:
            stack.enter_context(clock.watching(*each))
        with clock.part(REST):
            say("features of the test images")
            tiles = [model.features(batch) for batch in test.batches(np.arange(len(test)), IMAGES_PER_TILE)]
            method.use_features(test, [[torch.cat(group).numpy()] for group in zip(*tiles, strict=True)])
            del tiles
        step = work.classes // work.tasks
        for start, end in pairwise(range(0, work.classes + 1, step)):
            with clock.part(REST):
                view, labels = stream.view(train, start, end)
                method.learn(Task(view, labels))
                view.close()
                if end in work.evaluated:
                    predict(method, stream.view(test, 0, end)[0])
                    say(f"{end:,} of {work.classes:,} classes, {sum(clock.seconds().values()):.0f} s")
    return clock


def synthetic(folder: Path, names: list[str], model: CircleClassifier, work: Workload, workers: int) -> Stream:
    """The stream: every class has as many images as every other, drawn from the files."""
    train, test = (
        drawn_images(folder, names, np.arange(count) % work.classes, model, seed, workers)
        for seed, count in enumerate((work.images, work.tests))
    )
    labels = [f"{label:04}" for label in range(work.classes)]
    return Stream.of(Dataset("synthetic", labels, model.input_config(), train, test), 0)


def forget_peak() -> None:
    """Let the most so far begin anew with what is held now (proc(5), clear_refs), memory that is free given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--preset", default="fast-224", choices=list_presets())
    parser.add_argument("--images-per-class", type=int, default=4)
    parser.add_argument("--tests-per-class", type=int, default=1)
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--evaluate-every", type=int, default=10, help="tasks between evaluations of the stream")
    parser.add_argument("--class-points", type=int, nargs="+", help="numbers of classes at which costs are measured")
    parser.add_argument("--workers", type=int, default=0, help="processes that decode, as in `circle bench run`")
    parser.add_argument("--network", type=float, default=1e9, help="bytes a second between machines, an assumption")
    parser.add_argument("--output", type=Path, help="JSON file; a Markdown table is written beside it")
    arguments = parser.parse_args()
    if arguments.classes % arguments.tasks:
        parser.error("classes must be a multiple of tasks")
    output = arguments.output or Path(f"results/benchmarks/imagenet-{arguments.preset}.json")
    work = Workload(
        arguments.images_per_class * arguments.classes,
        arguments.tests_per_class * arguments.classes,
        arguments.classes,
        arguments.tasks,
        arguments.evaluate_every,
    )
    say("limits of the machine")
    machine = Machine.measure()
    say("extractors and their calibration")
    model = CircleClassifier.from_preset(arguments.preset)
    model.prepare(model.input_config())
    points = arguments.class_points or POINTS[model.groups_[0].size > LARGE]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say("photographs")
        names = write_photographs(folder)
        mean_bytes = np.mean([(folder / each).stat().st_size for each in names])
        photographs = FileImages(folder, names, np.zeros(len(names), np.int64), model.input_config(), arguments.workers)
        measured = measure(model, photographs, points)
        stream = synthetic(folder, names, model, work, arguments.workers)
        preparation = memory_now("VmHWM")
        forget_peak()
        before = memory_now("VmRSS") - model.statistics_bytes  # the second moments are there, full of zeros
        say("the stream")
        clock = run(model, stream, work)
        peak = memory_now("VmHWM")
    costs, work_costs = (measured.costs(model, arguments.network, each) for each in (WALL, PROCESSOR))
    limits = (
        f"{machine.threads} threads: {machine.double_gemm / 1e9:.0f} Gflop/s float64, {machine.copy / 1e9:.1f} GB/s"
    )
    found = [
        Row("machine", "limits", limits),
        Row("machine", "photographs", f"{len(names)} files of {mean_bytes / 1e3:.0f} kB"),
        Row("machine", "peak memory before the stream", size_words(preparation), "calibration and unit costs"),
        *unit_rows(costs, machine),
        *compared(costs, work, clock.seconds(), "synthetic stream"),
        # On a machine that is shared, time on the wall changes within minutes; the work does not.
        *compared(work_costs, work, clock.seconds(PROCESSOR), "synthetic stream, processors"),
        *memory_rows(costs, work, model.statistics_bytes, before, peak),
        *extrapolated(costs),
        *corrected(costs, work, clock.seconds()),
        *pair_rows(costs, work.classes),
    ]
    show(found, f"ImageNet-1k with {arguments.preset}")
    about = {
        "command": "python -m benchmarks.imagenet "
        + " ".join(f"--{key.replace('_', '-')} {value}" for key, value in vars(arguments).items() if value),
        "version": __version__,
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "costs": asdict(costs),
        "class_points": points,
        "processor_costs": asdict(work_costs),
        "stream": {
            "work": asdict(work),
            "seconds": clock.seconds(),
            "predicted": costs.total(work),
            "processor_seconds": clock.seconds(PROCESSOR),
            "processor_predicted": work_costs.total(work),
        },
        "imagenet": [
            {"machines": machines, "evaluations": len(work.evaluated), "seconds": costs.total(work, machines)}
            for work in map(imagenet, SPACINGS)
            for machines in MACHINES
        ],
    }
    write(output, found, about)
    print(f"kept in {output}")


if __name__ == "__main__":
    main()
