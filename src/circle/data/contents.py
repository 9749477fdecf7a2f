"""One image at a time, decoded from its bytes by a process with limits of its own.

A server shows strangers' images to Pillow. Whatever one of them does to the decoder (a bomb, a crash, an endless loop),
it does to a process that is ended and started again, and the answer is one line that says so.
"""

from __future__ import annotations

import math
import mmap
import signal
import subprocess
import sys
import threading
from typing import Self

import numpy as np

from circle.data.decode import ImageConfig
from circle.data.workers import end_processes, receive, send, shared_file, start_process
from circle.errors import CircleError, UnreadableImageError

MEMORY = 1536 * 2**20  # bytes of address space for one process
PIXELS = 4096 * 4096
SECONDS = 10.0  # of processor time
PATIENCE = 6  # times that by the clock, for a machine may be busy
LIFETIME = 5000  # images, after which a process is replaced, so that none can grow for ever


class ContentDecoder:
    """A process that decodes images given as bytes; one call at a time.

    It starts with the first call, is replaced after it was ended, and ends with :meth:`close`.
    """

    def __init__(
        self, config: ImageConfig, *, pixels: int = PIXELS, memory: int = MEMORY, seconds: float = SECONDS
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

        timer = threading.Timer(PATIENCE * self._seconds, stop)
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
        if self._process is not None and (self._decoded >= LIFETIME or self._process.poll() is not None):
            self.close()
        if self._process is None:
            with shared_file(self._bytes) as file:
                self._memory = mmap.mmap(file.fileno(), self._bytes)
                self._process = start_process(file)
                self._decoded = 0
                setting = {
                    "path": sys.path,
                    "image": self.config.to_dict(),
                    "memory": file.fileno(),
                    "bytes": self._bytes,
                    "limits": self._limits,
                }
                try:
                    send(self._process, setting)
                except CircleError:
                    self.close()
                    raise
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
