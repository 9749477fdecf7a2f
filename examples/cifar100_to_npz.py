"""Turn CIFAR-100's official binary files into npz files that `circle learn` and `circle evaluate` take.

    python examples/cifar100_to_npz.py cifar-100-binary/ .

writes ``cifar100-train.npz`` and ``cifar100-test.npz`` with uint8 images x [N, 32, 32, 3] and class names y.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def convert(source: Path, destination: Path) -> None:
    """A record is one byte of coarse label, one of fine label, then 3 x 32 x 32 pixels, channels first."""
    names = np.array((source / "fine_label_names.txt").read_text().split())
    for split in ("train", "test"):
        records = np.fromfile(source / f"{split}.bin", np.uint8).reshape(-1, 3074)
        images = records[:, 2:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        np.savez(destination / f"cifar100-{split}.npz", x=np.ascontiguousarray(images), y=names[records[:, 1]])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python {sys.argv[0]} CIFAR-100-BINARY-FOLDER DESTINATION")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
