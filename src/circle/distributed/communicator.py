"""The ranks of one job, on one machine or many: messages and tensors between them, and sums of their statistics.

Started by torchrun, or by anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Messages are JSON and
go through gloo; statistics are summed by gloo on CPUs and by NCCL on GPUs. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from circle.distributed import environment
from circle.distributed.model_groups import Contents
from circle.errors import CircleError, LostProcessError, ReportedByRankZeroError
from circle.labels import decode_labels, encode_labels
from circle.statistics import Statistics, sum_across

Value = TypeVar("Value")
NewTensor = Callable[[Sequence[int], torch.dtype], Tensor]  # an uninitialised tensor of a shape and dtype


class Communicator:
    """One rank's connection to the others. All ranks call the same methods in the same order; :func:`connect` makes it.

    A rank that ends, or does not answer for ``timeout_seconds``, makes the others raise :class:`LostProcessError`.

    Parameters
    ----------
    rank, world_size : int
        Number of this process, from 0, and how many there are.
    device : str
        Where this rank computes, and where statistics are summed.
    timeout_seconds : float
        After how long a silent rank is given up.
    stop_requests : sequence of int
        Filled with signals while this process is asked to stop.

    Attributes
    ----------
    stop_requested : bool
        Whether any rank was asked to stop, as of the last :meth:`all_gather`: the same on all ranks.
    """

    def __init__(
        self, rank: int, world_size: int, device: str, timeout_seconds: float, stop_requests: Sequence[int] = ()
    ) -> None:
        self.rank, self.world_size, self.device, self.timeout_seconds = rank, world_size, device, timeout_seconds
        self.stop_requests, self.stop_requested = stop_requests, False

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    # -- messages --------------------------------------------------------------------------------------------

    def all_gather(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """The messages of all ranks, by rank, on every rank."""
        text = _to_bytes({"stop": bool(self.stop_requests), "message": message})
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        with self._reaching():
            dist.all_gather(lengths, torch.tensor([len(text)]))
            longest = int(max(lengths))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(text)] = text
            texts = [torch.empty_like(padded) for _ in range(self.world_size)]
            dist.all_gather(texts, padded)
        answers = [_from_bytes(each[: int(length)]) for each, length in zip(texts, lengths, strict=True)]
        self.stop_requested = self.stop_requested or any(answer["stop"] for answer in answers)
        return [answer["message"] for answer in answers]

    def broadcast(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """Rank zero's message, on every rank; what the others give is ignored."""
        text = _to_bytes(message) if self.is_rank_zero else torch.zeros(0, dtype=torch.uint8)
        length = torch.tensor([len(text)])
        with self._reaching():
            dist.broadcast(length, 0)
            text = text if self.is_rank_zero else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(text, 0)
        return _from_bytes(text)

    # -- errors ----------------------------------------------------------------------------------------------

    def on_all_ranks(self, step: Callable[[], Value]) -> Value:
        """Run ``step`` on every rank; where it fails on one it raises on all, and rank zero prints why."""
        value, error_text = None, None
        try:
            value = step()
        except LostProcessError:
            raise
        except CircleError as error:
            error_text = str(error)
        self.raise_first([answer["error"] for answer in self.all_gather({"error": error_text})])
        return value  # pyright: ignore[reportReturnType]

    def on_rank_zero(self, step: Callable[[], Value]) -> Value | None:
        """Run ``step`` on rank zero alone; where it fails it raises on all ranks. The others get None."""
        return self.on_all_ranks(lambda: step() if self.is_rank_zero else None)

    def raise_first(self, errors: Sequence[str | None]) -> None:
        """Raise the error of the lowest rank that has one, on every rank; ``errors`` are those of all ranks."""
        failed = [rank for rank, error in enumerate(errors) if error is not None]
        if not failed:
            return
        text = str(errors[failed[0]])
        if len(set(errors)) > 1:
            text = f"process {failed[0]} of {self.world_size}: {text}"
        self.fail(text)

    def fail(self, message: str) -> NoReturn:
        """Raise an error that all ranks have found alike: rank zero prints it."""
        raise CircleError(message) if self.is_rank_zero else ReportedByRankZeroError(message)

    def require_equal(self, message: dict[str, Any], error: Callable[[int, list[dict[str, Any]]], str]) -> None:
        """Fail unless all ranks give equal messages; ``error`` words it for the first rank that differs from zero."""
        messages = self.all_gather(message)
        for rank, each in enumerate(messages):
            if each != messages[0]:
                self.fail(error(rank, messages))

    # -- tensors ---------------------------------------------------------------------------------------------

    def send(self, contents: tuple[dict[str, Any], Mapping[str, Tensor]], rank: int) -> None:
        """Give a header and tensors to one other rank, which must :meth:`receive` them."""
        header, tensors = contents
        plain = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
        kinds = {name: [str(each.dtype).removeprefix("torch."), each.shape] for name, each in plain.items()}
        text = _to_bytes({"header": header, "tensors": kinds})
        with self._reaching():
            dist.send(torch.tensor([len(text)]), rank)
            for part in (text, *map(_flat, plain.values())):
                if len(part):
                    dist.send(part, rank)

    def receive(self, rank: int, new: NewTensor = lambda shape, dtype: torch.empty(shape, dtype=dtype)) -> Contents:
        """What ``rank`` sends; ``new`` makes the tensors that it is written into."""
        length = torch.zeros(1, dtype=torch.int64)
        with self._reaching():
            dist.recv(length, rank)
            text = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(text, rank)
            message = _from_bytes(text)
            tensors = {name: new(shape, getattr(torch, dtype)) for name, (dtype, shape) in message["tensors"].items()}
            for part in map(_flat, tensors.values()):
                if len(part):
                    dist.recv(part, rank)
        return message["header"], tensors

    def scatter(self, contents: Sequence[Contents]) -> Contents:
        """Each rank's part of a list, one for each rank, that rank zero has; the others' argument is ignored."""
        if not self.is_rank_zero:
            return self.receive(0)
        for rank in range(1, self.world_size):
            self.send(contents[rank], rank)
        return contents[0]

    def gather(self, contents: Contents, folder: Path | None = None) -> list[Contents]:
        """The contents of all ranks, by rank, on rank zero; an empty list on the others.

        With ``folder``, what comes from other ranks is mapped from files in it, so that it need not fit into memory.
        """
        if not self.is_rank_zero:
            self.send(contents, 0)
            return []
        mapped = {} if folder is None else {"new": memory_mapped(folder)}
        return [contents, *(self.receive(rank, **mapped) for rank in range(1, self.world_size))]

    def all_reduce(self, statistics: Sequence[Statistics]) -> list[Statistics]:
        """The sum of the statistics of all ranks, one of each group, on every rank: bitwise that of one process."""

        def gather(classes: list[Hashable]) -> list[list[Hashable]]:
            return [decode_labels(each["classes"]) for each in self.all_gather({"classes": encode_labels(classes)})]

        def all_reduce(vector: Tensor) -> None:
            with self._reaching():
                dist.all_reduce(vector)

        return sum_across(statistics, gather, all_reduce, self.device)

    # -- lost ranks ------------------------------------------------------------------------------------------

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # PyTorch raises this and classes below it for all that can happen
            raise LostProcessError(
                f"process {self.rank} of {self.world_size}: {self._loss(error)}; "
                "run the same command again to resume from the last save"
            ) from error

    def _loss(self, error: RuntimeError) -> str:
        """Why a message did not get through, as far as this rank can tell."""
        if "Timed out" in str(error):  # gloo's words; there is no class for it
            return f"another process gave no answer for {self.timeout_seconds:g} s"
        ended = [str(rank) for rank in range(self.world_size) if rank != self.rank and self._has_left(rank)]
        if not ended:
            return "the connection to another process is lost"
        return f"process{'es' if len(ended) > 1 else ''} {', '.join(ended)} ended"

    def _has_left(self, rank: int) -> bool:
        """Whether a rank has closed its connection: then a message is refused at once, and else it just waits."""
        try:
            dist.isend(torch.zeros(1), rank)
        except RuntimeError:
            return True
        return False


@contextmanager
def connect(device: str, timeout_seconds: float, stop_requests: Sequence[int] = ()) -> Iterator[Communicator]:
    """A connection to the ranks that the environment describes, for the length of a block.

    ``device`` "cuda" becomes the GPU of this process's local rank.
    """
    rank, world_size = environment.rank(), environment.world_size()
    if timeout_seconds <= 0:
        raise environment.error_on_all_ranks(f"timeout-seconds {timeout_seconds:g}: expected more than 0")
    if torch.device(device).type == "cuda":
        device = f"cuda:{environment.local_rank()}" if torch.device(device).index is None else device
        torch.cuda.set_device(device)
    backend = "gloo" if torch.device(device).type == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_seconds)
    try:
        dist.init_process_group(backend, rank=rank, world_size=world_size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        where = " ".join(str(error).split())[:200]
        raise LostProcessError(
            f"process {rank} of {world_size}: the processes did not find each other within {timeout_seconds:g} s "
            f"({where}); expected MASTER_ADDR and MASTER_PORT of rank 0, and all of them started"
        ) from error
    try:
        yield Communicator(rank, world_size, device, timeout_seconds, stop_requests)
    finally:
        dist.destroy_process_group()


def memory_mapped(folder: Path) -> NewTensor:
    """Makes tensors that are mapped from files without a name in ``folder``.

    A file is gone when its tensor is, and when the process ends, however that ends.
    """

    def new(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if not math.prod(shape):
            return torch.empty(*shape, dtype=dtype)  # an empty file cannot be mapped
        with tempfile.TemporaryFile(dir=folder) as file:  # the mapping holds on to it
            return torch.from_numpy(np.memmap(file, str(dtype).removeprefix("torch."), "w+", shape=tuple(shape)))

    return new


def _flat(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, uint8 [n]."""
    return tensor.view(-1).view(torch.uint8)


def _to_bytes(message: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)


def _from_bytes(text: Tensor) -> Any:
    return json.loads(text.numpy().tobytes())
