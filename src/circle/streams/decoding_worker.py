"""The program of one decoding process; :mod:`circle.streams.workers` starts it and talks to it.

It reads one JSON line per order from standard input and answers each with one JSON line: null, or why not. The
pixels go into the memory that both share. It ends when its input does, so it cannot outlive its parent.
"""

from __future__ import annotations

import json
import mmap
import signal
import sys
from typing import Any, TextIO


def _serve(setting: dict[str, Any], orders: TextIO, answers: TextIO) -> None:
    # Imported once the parent has said where from; neither PyTorch nor scikit-learn comes along.
    import numpy as np

    from circle.errors import CircleError
    from circle.streams.decode import ImageConfig
    from circle.streams.reading import FileReader

    config = ImageConfig.from_dict(setting["image"])
    memory = np.frombuffer(mmap.mmap(setting["memory"], setting["bytes"]), np.uint8)
    reader = FileReader()
    for line in orders:
        order = json.loads(line)
        files = order["files"]
        shape = (len(files), config.height, config.width, config.channels)
        start, length = order["start"], int(np.prod(shape))
        answer = None
        try:
            reader.decode(files, config, memory[start : start + length].reshape(shape))
        except CircleError as error:
            answer = {"unreadable": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    # Ctrl-C reaches every process of the terminal, but it is the parent that decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders, answers = sys.stdin, sys.stdout
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
