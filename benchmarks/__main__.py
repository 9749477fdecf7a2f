"""All benchmarks of the core in one table.

python -m benchmarks [--parts extraction statistics ...] [--output results/benchmarks/speed.json]
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks import extraction, learning, memory, peers, prediction, reuse, startup, stream
from benchmarks.limits import Machine
from benchmarks.rows import Row, show, write
from circle import __version__

PARTS: dict[str, Callable[[Machine], Iterator[Row]]] = {
    "extraction": extraction.rows,
    "learning": learning.rows,
    "prediction": prediction.rows,
    "stream": stream.rows,
    "reuse": reuse.rows,
    "peers": peers.rows,
    "memory": memory.rows,
    "startup": startup.rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks/speed.json"))
    arguments = parser.parse_args()
    found: list[Row] = []
    for part in arguments.parts:
        print(f"{part} ...", flush=True)
        # The limits are measured beside each part: on a shared machine they change within minutes.
        machine = Machine.measure()
        limits = (
            f"{machine.threads} threads: {machine.gemm / 1e9:.0f} Gflop/s float32, "
            f"{machine.double_gemm / 1e9:.0f} float64, {machine.copy / 1e9:.1f} GB/s copied in memory, "
            f"{machine.cached_copy / 1e9:.0f} in cache"
        )
        found.append(Row(part, "limits of the machine", limits))
        found += PARTS[part](machine)
    show(found, "CIRCLE on this machine")
    about = {
        "command": "python -m benchmarks --parts " + " ".join(arguments.parts),
        "version": __version__,
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
    }
    write(arguments.output, found, about)
    print(f"kept in {arguments.output}")


if __name__ == "__main__":
    main()
