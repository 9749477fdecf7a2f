"""Several processes of one job, on one machine or many: what they tell each other, and sums of their statistics.

Started by torchrun, or by anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Messages are JSON and
go through gloo; statistics are summed by gloo on CPUs and by NCCL on GPUs. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from circle.distributed import processes
from circle.errors import CircleError, LostProcessError, ToldElsewhereError
from circle.labels import decode_labels, encode_labels
from circle.learner import CircleClassifier
from circle.statistics import Statistics, sum_across

Value = TypeVar("Value")


class Team:
    """The processes of a job. All of them call the same methods in the same order; :func:`joined_team` makes it.

    A process that ends, or does not answer for ``seconds``, makes the others raise :class:`LostProcessError`.
    ``stop`` is filled when this process is asked to stop; ``stopping`` tells, the same to all, whether any was.
    """

    def __init__(self, rank: int, size: int, device: str, seconds: float, stop: Sequence[int] = ()) -> None:
        self.rank, self.size, self.device, self.seconds = rank, size, device, seconds
        self.stop, self.stopping = stop, False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    # -- messages --------------------------------------------------------------------------------------------

    def exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Everybody's message, by rank."""
        text = _bytes({"stop": bool(self.stop), "message": message})
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._reaching():
            dist.all_gather(lengths, torch.tensor([len(text)]))
            longest = int(max(lengths))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(text)] = text
            texts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(texts, padded)
        answers = [_read(each[: int(length)]) for each, length in zip(texts, lengths, strict=True)]
        self.stopping = self.stopping or any(answer["stop"] for answer in answers)
        return [answer["message"] for answer in answers]

    def broadcast(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """The first process's message; what the others give is not looked at."""
        text = _bytes(message) if self.first else torch.zeros(0, dtype=torch.uint8)
        length = torch.tensor([len(text)])
        with self._reaching():
            dist.broadcast(length, 0)
            text = text if self.first else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(text, 0)
        return _read(text)

    def together(self, step: Callable[[], Value]) -> Value:
        """Do a step of one's own; where it fails in one process it fails in all, and the first one says why."""
        value, wrong = None, None
        try:
            value = step()
        except LostProcessError:
            raise
        except CircleError as error:
            wrong = str(error)
        self.check([answer["wrong"] for answer in self.exchange({"wrong": wrong})])
        return value  # pyright: ignore[reportReturnType]

    def check(self, errors: Sequence[str | None]) -> None:
        """Raise the first of the errors, one per process, that there is: the same everywhere."""
        failed = [rank for rank, error in enumerate(errors) if error is not None]
        if not failed:
            return
        text = str(errors[failed[0]])
        if len(set(errors)) > 1:
            text = f"process {failed[0]} of {self.size}: {text}"
        raise CircleError(text) if self.first else ToldElsewhereError(text)

    # -- tensors ---------------------------------------------------------------------------------------------

    def send(self, tensors: Mapping[str, Tensor], rank: int) -> None:
        """Give tensors to one other process, which must :meth:`receive` them."""
        plain = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
        text = _bytes({name: [str(each.dtype).removeprefix("torch."), each.shape] for name, each in plain.items()})
        with self._reaching():
            dist.send(torch.tensor([len(text)]), rank)
            for part in (text, *map(_flat, plain.values())):
                if len(part):
                    dist.send(part, rank)

    def receive(self, rank: int, new: Callable[..., Tensor] = torch.empty) -> dict[str, Tensor]:
        """What ``rank`` sends, by name; ``new`` makes the tensors, given their shape and dtype."""
        length = torch.zeros(1, dtype=torch.int64)
        with self._reaching():
            dist.recv(length, rank)
            text = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(text, rank)
            tensors = {name: new(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in _read(text).items()}
            for part in map(_flat, tensors.values()):
                if len(part):
                    dist.recv(part, rank)
        return tensors

    def summed(self, statistics: Sequence[Statistics]) -> list[Statistics]:
        """The sum of what all processes have learned, one of each group: bitwise that of one process."""

        def gather(classes: list[Hashable]) -> list[list[Hashable]]:
            return [decode_labels(each["classes"]) for each in self.exchange({"classes": encode_labels(classes)})]

        def all_reduce(vector: Tensor) -> None:
            with self._reaching():
                dist.all_reduce(vector)

        return sum_across(statistics, gather, all_reduce, self.device)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # PyTorch raises this and classes below it for all that can happen
            raise LostProcessError(
                f"process {self.rank} of {self.size}: {self._loss(error)}; "
                "give the same command again to go on from what was saved last"
            ) from error

    def _loss(self, error: RuntimeError) -> str:
        """Why a message did not get through, as far as this process can tell."""
        if "Timed out" in str(error):  # gloo's words; there is no class for it
            return f"another process gave no answer for {self.seconds:g} s"
        ended = [str(rank) for rank in range(self.size) if rank != self.rank and self._left(rank)]
        if not ended:
            return "the connection to another process is lost"
        return f"process{'es' if len(ended) > 1 else ''} {', '.join(ended)} ended"

    def _left(self, rank: int) -> bool:
        """Whether a process has closed its connection: then a message is refused at once, and else it just waits."""
        try:
            dist.isend(torch.zeros(1), rank)
        except RuntimeError:
            return True
        return False


def require_exact(model: CircleClassifier) -> None:
    """Refuse what several processes could not add up to the model of one."""
    if not model.quantise:
        raise CircleError("quantise = False: float sums depend on their order; several processes expect --quantise")


@contextmanager
def joined_team(device: str, seconds: float, stop: Sequence[int] = ()) -> Iterator[Team]:
    """The team that the environment describes, for the length of a block; ``device`` cuda becomes a GPU of its own."""
    rank, size = processes.rank(), processes.count()
    if seconds <= 0:
        raise processes.told_once(f"timeout-seconds {seconds:g}: expected more than 0")
    if torch.device(device).type == "cuda":
        device = f"cuda:{processes.local_rank()}" if torch.device(device).index is None else device
        torch.cuda.set_device(device)
    backend = "gloo" if torch.device(device).type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
    except (RuntimeError, ValueError) as error:
        where = " ".join(str(error).split())[:200]
        raise LostProcessError(
            f"process {rank} of {size}: the processes did not find each other within {seconds:g} s ({where}); "
            "expected MASTER_ADDR and MASTER_PORT of the first one, and all of them started"
        ) from error
    try:
        yield Team(rank, size, device, seconds, stop)
    finally:
        dist.destroy_process_group()


def _flat(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor, uint8 [n]."""
    return tensor.view(-1).view(torch.uint8)


def _bytes(message: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)


def _read(text: Tensor) -> Any:
    return json.loads(text.numpy().tobytes())
