"""circle demo"""

from __future__ import annotations

from pathlib import Path

from circle.benchmark.demo import run_demo
from circle.cli import console


def demo(*, output: Path = Path("circle-demo.png"), seed: int = 0) -> int:
    """Class-incremental learning of handwritten digits: 5 tasks of 2 classes, CIRCLE beside two references.

    Parameters
    ----------
    output
        Where the plot goes.
    seed
        Seed of the models.
    """
    run_demo(output, seed=seed, console=console.output())
    return 0
