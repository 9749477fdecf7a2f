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
    from circle.benchmark.experiment import StoppedError, run
    from circle.benchmark.metrics import StreamRecord
    from circle.benchmark.results import Run, read_runs
    from circle.benchmark.runner import Progress

__all__ = ["Evaluation", "Progress", "Run", "StoppedError", "StreamRecord", "evaluate", "read_runs", "run"]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "circle.benchmark.evaluation": "Evaluation evaluate",
        "circle.benchmark.experiment": "StoppedError run",
        "circle.benchmark.metrics": "StreamRecord",
        "circle.benchmark.results": "Run read_runs",
        "circle.benchmark.runner": "Progress",
    },
)
