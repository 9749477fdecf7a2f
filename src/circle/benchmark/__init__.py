"""The benchmark: methods learn a stream of classes, task after task, and are tested after each.

Five lines run one and have its metrics; running them again resumes, or reads, what is on record:

>>> import tempfile
>>> from circle.benchmark import run
>>> with tempfile.TemporaryDirectory() as folder:
...     runs = run("digits", tasks=5, preset="small", seeds=[0, 1], output=folder, cache=False)
>>> [round(each.record("5").average_incremental_accuracy, 1) for each in runs]
[1.0, 1.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from circle.registry import public_names

if TYPE_CHECKING:
    from circle.benchmark.evaluation import Evaluation, evaluate
    from circle.benchmark.experiment import ExperimentProgress, StoppedError, run
    from circle.benchmark.metrics import StreamRecord
    from circle.benchmark.results import Run, read_runs

__all__ = ["Evaluation", "ExperimentProgress", "Run", "StoppedError", "StreamRecord", "evaluate", "read_runs", "run"]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "Evaluation": "circle.benchmark.evaluation",
        "ExperimentProgress": "circle.benchmark.experiment",
        "Run": "circle.benchmark.results",
        "StoppedError": "circle.benchmark.experiment",
        "StreamRecord": "circle.benchmark.metrics",
        "evaluate": "circle.benchmark.evaluation",
        "read_runs": "circle.benchmark.results",
        "run": "circle.benchmark.experiment",
    },
)
