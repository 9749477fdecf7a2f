"""Two processes on this machine sum up statistics of ImageNet's size: the only check of what many machines take."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.imagenet_costs import NUMBER, Costs
from benchmarks.imagenet_rows import size_words
from benchmarks.rows import Row
from circle.distributed.communicator import Communicator
from circle.statistics import SAMPLES_PER_PRODUCT, Statistics

PROCESSES, ROUNDS = 2, 3


def median_seconds(function: Callable[[], object]) -> float:
    """Of calls that all processes begin together, the first, which warms up, aside."""
    times = []
    for _ in range(1 + ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def member(rank: int, folder: str, threads: int, heads: int, size: int, classes: int, answers: Any) -> None:
    """One of the processes: seconds of summing up as `circle bench run` does, and of sending the bytes alone."""
    torch.set_num_threads(threads)
    store = dist.FileStore(f"{folder}/store", PROCESSES)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    ranks, learned = Communicator(rank, PROCESSES, "cpu", 600.0), [Statistics(size) for _ in range(heads)]
    generator = torch.Generator().manual_seed(rank)
    for each in learned:
        noise = torch.randint(-99, 100, (SAMPLES_PER_PRODUCT, size), generator=generator).to(torch.int16)
        each.update(noise, [row % classes for row in range(SAMPLES_PER_PRODUCT)])
        each.flush()
    summing = median_seconds(lambda: ranks.all_reduce(learned))
    numbers = classes + heads + heads * (classes * size + size * (size + 1) // 2)
    vector = torch.zeros(numbers, dtype=torch.int64)
    sending = median_seconds(lambda: dist.all_reduce(vector))
    if ranks.is_rank_zero:
        answers.put((summing, sending, NUMBER * numbers))
    dist.barrier()
    dist.destroy_process_group()


def pair_rows(costs: Costs, classes: int) -> Iterator[Row]:
    """Summing with two processes, against the own work that a single rank had and what the bytes take between them.

    The network's rate is no part of it: processes of one machine do not use one. They share its cores and memory, too.
    """
    context = torch.multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    threads = max(1, torch.get_num_threads() // PROCESSES)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (str(Path(folder)), threads, costs.heads, costs.size, classes, answers)
        torch.multiprocessing.spawn(member, arguments, nprocs=PROCESSES)  # pyright: ignore[reportPrivateImportUsage]
    summing, sending, count = answers.get()
    predicted = costs.summing.seconds(classes) + sending
    yield Row(
        "two processes",
        f"summing, {classes:,} classes, all heads, {threads} threads each",
        f"{summing:.3g} s",
        f"predicted {predicted:.3g} s: own work, and {sending:.3g} s for {size_words(count)} between them",
        summing / predicted,
    )
