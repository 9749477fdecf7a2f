"""The program of one decoding process; :mod:`circle.data.workers` starts it and talks to it.

It reads one JSON line per order from standard input and answers each with one JSON line: null, or why not. The
order names files, or says how many bytes of one image follow it. The pixels go into the memory that both share. It
ends when its input does, so it cannot outlive its parent.
"""

from __future__ import annotations

import json
import mmap
import resource
import signal
import sys
from typing import IO, Any, TextIO


def _limit(limits: dict[str, int]) -> None:
    """Bounds that a stranger's image cannot pass: memory, pixels, no files written, no core left behind."""
    from circle.data import decode

    if sys.platform == "linux":  # macOS knows the limit by name, but does not keep to it
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    decode.MAXIMUM_PIXELS = limits["pixels"]


def _allow(seconds: int) -> None:
    """Let the next image take so much processor time; one that takes more ends this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _serve(setting: dict[str, Any], orders: IO[bytes], answers: TextIO) -> None:
    # Imported once the parent has said where from; neither PyTorch nor scikit-learn comes along.
    import numpy as np

    from circle.data.archives import FileReader
    from circle.data.decode import ImageConfig, read_pixels
    from circle.errors import CircleError

    if "limits" in setting:
        _limit(setting["limits"])
    config = ImageConfig.from_dict(setting["image"])
    memory = np.frombuffer(mmap.mmap(setting["memory"], setting["bytes"]), np.uint8)
    reader = FileReader()
    for line in orders:
        order = json.loads(line)
        files = order.get("files", [None])
        shape = (len(files), config.height, config.width, config.channels)
        start, length = order["start"], int(np.prod(shape))
        target = memory[start : start + length].reshape(shape)
        answer = None
        try:
            if "content" in order:
                if "limits" in setting:
                    _allow(setting["limits"]["seconds"])
                content = orders.read(order["content"])
                target[0] = read_pixels(content, config, order["name"]).transpose(1, 2, 0)
            else:
                reader.decode(files, config, target)
        except CircleError as error:
            answer = {"unreadable": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    # Ctrl-C reaches every process of the terminal, but it is the parent that decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders, answers = sys.stdin.buffer, sys.stdout
    sys.stdout = sys.stderr  # nobody else's print may get between the answers
    try:
        setting = json.loads(orders.readline())
        sys.path[:] = setting["path"]
        _serve(setting, orders, answers)
    except BrokenPipeError:
        sys.stderr.close()
    except Exception as error:
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=answers, flush=True)


if __name__ == "__main__":
    main()
