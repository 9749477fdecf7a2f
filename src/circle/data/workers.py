"""Images decoded by processes of their own, a bounded number of batches ahead, in order.

Every batch is cut into one part per worker. A worker decodes its part straight into memory that it shares with
this process, and the batch is handed on once all have said that they are done. The workers are plain programs
rather than ``multiprocessing``: that would import the user's own script once more in each of them.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from circle.data.decode import ImageConfig
from circle.errors import CircleError, UnreadableImageError, reason

_PROGRAM = Path(__file__).with_name("decoding_worker.py")
_SHARED = Path("/dev/shm")  # memory, where there is such a place

# Limits of a process that decodes strangers' images.
MAX_MEMORY_BYTES = 1536 * 2**20  # of address space
MAX_PIXELS = 4096 * 4096
MAX_SECONDS = 10.0  # of processor time for one image
WALL_TIME_FACTOR = 6  # times that by the clock, for a machine may be busy
MAX_IMAGES = 5000  # after which a process is replaced, so that none can grow for ever


class Decoders:
    """Worker processes that stay for many calls of :meth:`batches`; one such call at a time.

    They start with the first call, and end with :meth:`close`, with this object or with this process,
    however it ends. After an error they start afresh.
    """

    def __init__(self, config: ImageConfig, workers: int) -> None:
        self._config = config
        self._count = workers
        self._image_bytes = config.height * config.width * config.channels
        self._processes: list[subprocess.Popen[bytes]] = []
        self._memory: mmap.mmap | None = None
        self._owner = os.getpid()

    def batches(self, parts: Iterable[list[str]], size: int, buffers: int) -> Iterator[np.ndarray]:
        """One array per part, which are up to ``size`` files each; ``buffers`` parts are decoded ahead."""
        self._prepare(buffers * size * self._image_bytes)
        ordered: deque[tuple[int, list[str]]] = deque()  # where each batch goes, and its files
        ended = False
        try:
            for number, part in enumerate(parts):
                if len(ordered) == buffers:
                    yield self._collect(*ordered.popleft())
                place = number % buffers * size * self._image_bytes
                self._order(place, part)
                ordered.append((place, part))
            while ordered:
                yield self._collect(*ordered.popleft())
            ended = True
        finally:
            if not ended:  # an error, or nobody wants the rest: answers are still on their way, so start afresh
                self.close()

    def _shares(self, part: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int, list[str]]]:
        """What each worker does of a batch: process, position of the first image, files."""
        bounds = [len(part) * worker // self._count for worker in range(self._count + 1)]
        for process, first, last in zip(self._processes, bounds, bounds[1:], strict=False):
            if last > first:
                yield process, first, part[first:last]

    def _order(self, place: int, part: list[str]) -> None:
        for process, first, files in self._shares(part):
            send(process, {"start": place + first * self._image_bytes, "files": files})

    def _collect(self, place: int, part: list[str]) -> np.ndarray:
        for process, _, _ in self._shares(part):
            answer = receive(process)
            if answer is not None:
                # An error of a later share is never looked at: the first in order counts, as without workers.
                raise UnreadableImageError(answer["unreadable"])
        assert self._memory is not None
        shape = (len(part), self._config.height, self._config.width, self._config.channels)
        view = np.frombuffer(self._memory, np.uint8, count=len(part) * self._image_bytes, offset=place)
        return view.reshape(shape).copy()  # the memory is used again for a later batch

    def _prepare(self, size: int) -> None:
        """Have workers running that share at least ``size`` bytes."""
        if self._memory is not None and len(self._memory) >= size:
            return
        self.close()
        self._processes, self._memory = start_processes(self._config, size, self._count)

    def close(self) -> None:
        """End the workers at once."""
        processes, self._processes, self._memory = self._processes, [], None
        if self._owner != os.getpid():
            return  # a forked copy of this object, which must leave the workers to the original
        end_processes(processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class ContentDecoder:
    """A process with limits of its own that decodes images given as bytes; one call at a time.

    A server shows strangers' images to Pillow. Whatever one of them does to the decoder (a bomb, a crash, an endless
    loop), it does to a process that is ended and started again, and the answer is one line that says so. The process
    starts with the first call, is replaced after it was ended, and ends with :meth:`close`.
    """

    def __init__(
        self,
        config: ImageConfig,
        *,
        pixels: int = MAX_PIXELS,
        memory: int = MAX_MEMORY_BYTES,
        seconds: float = MAX_SECONDS,
    ) -> None:
        self.config = config
        self._limits = {"pixels": pixels, "memory": memory, "seconds": math.ceil(seconds)}
        self._seconds = seconds
        self._bytes = config.height * config.width * config.channels
        self._process: subprocess.Popen[bytes] | None = None
        self._memory: mmap.mmap | None = None
        self._decoded = 0

    def decode(self, content: bytes, name: str = "image") -> np.ndarray:
        """uint8 ``[channels, height, width]`` of one image.

        Raises:
            UnreadableImageError: no image, one beyond the limits, or one that ended the process.
        """
        process = self._running()
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(WALL_TIME_FACTOR * self._seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            send(process, {"start": 0, "content": len(content), "name": name}, content)
            answer = receive(process)
        except CircleError as error:
            self.close()
            slow = late.is_set() or process.returncode == -signal.SIGXCPU
            why = f"took longer than {self._seconds:g} s" if slow else "ended the decoder"
            raise UnreadableImageError(f"{name}: {why}; expected a whole image") from error
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
        if answer is not None:
            raise UnreadableImageError(answer["unreadable"])
        assert self._memory is not None
        shape = (self.config.height, self.config.width, self.config.channels)
        pixels = np.frombuffer(self._memory, np.uint8).reshape(shape)
        result = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        return result.copy() if result.base is not None else result

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, started if there is none."""
        if self._process is not None and (self._decoded >= MAX_IMAGES or self._process.poll() is not None):
            self.close()
        if self._process is None:
            (self._process,), self._memory = start_processes(self.config, self._bytes, 1, self._limits)
            self._decoded = 0
        self._decoded += 1
        return self._process

    def close(self) -> None:
        """End the process at once."""
        process, self._process, self._memory = self._process, None, None
        if process is not None:
            end_processes([process])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_processes(
    image: ImageConfig, size: int, count: int, limits: dict[str, int] | None = None
) -> tuple[list[subprocess.Popen[bytes]], mmap.mmap]:
    """Processes that run the decoding program, within ``limits`` if given, and ``size`` bytes that all share."""
    processes: list[subprocess.Popen[bytes]] = []
    with shared_file(size) as file:
        memory = mmap.mmap(file.fileno(), size)
        setting = {"path": sys.path, "image": image.to_dict(), "memory": file.fileno(), "bytes": size}
        try:
            for _ in range(count):
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-P", str(_PROGRAM)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,  # what goes wrong is said in the answers
                        pass_fds=[file.fileno()],
                    )
                )
                send(processes[-1], setting if limits is None else {**setting, "limits": limits})
        except OSError as error:
            end_processes(processes)
            raise CircleError(f"a decoding process cannot be started ({reason(error)})") from error
        except BaseException:
            end_processes(processes)
            raise
    return processes, memory


def send(process: subprocess.Popen[bytes], message: dict[str, Any], content: bytes = b"") -> None:
    """Give a process one order, and the bytes that belong to it."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.write(content)
        process.stdin.flush()
    except BrokenPipeError as error:
        raise _ended(process) from error


def receive(process: subprocess.Popen[bytes]) -> dict[str, str] | None:
    """The answer to an order: nothing, or which image is unreadable and why."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise _ended(process)
    answer = json.loads(line)
    if answer and "failed" in answer:
        raise CircleError(f"a decoding process failed ({answer['failed']})")
    return answer


def end_processes(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes at once, whatever they are doing."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # what could not be sent any more
                pipe.close()  # pyright: ignore[reportOptionalMemberAccess]


def _ended(process: subprocess.Popen[bytes]) -> CircleError:
    code = process.wait()
    how = f"killed by signal {-code}; was there enough memory?" if code < 0 else f"exit code {code}"
    return CircleError(f"a decoding process ended before its work was done ({how})")


def shared_file(size: int) -> IO[bytes]:
    """A file without a name, so that nothing is left of it whatever happens; all its space is there from now on.

    A file that merely grows as it is written to would end the process instead of raising an error once the
    memory is full, and containers often allow /dev/shm little.
    """
    problem: OSError | None = None
    for folder in (_SHARED, None):
        if folder is not None and not folder.is_dir():
            continue
        try:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    os.ftruncate(file.fileno(), size)
                stack.pop_all()  # it stays open: the caller's to close
                return file
        except OSError as error:
            problem = error
    raise CircleError(f"no room for {size} bytes of decoded images ({reason(problem or OSError())})") from problem
