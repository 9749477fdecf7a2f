"""Tables, figures and pages from the records of runs.

``write_report(read_runs(["results"]), "report")`` writes the whole report, as ``circle bench report`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from circle.registry import public_names

if TYPE_CHECKING:
    from circle.report.drawing import save
    from circle.report.figures import confusion_figure, plot_streams
    from circle.report.report import ReportFiles, write_report

__all__ = ["ReportFiles", "confusion_figure", "plot_streams", "save", "write_report"]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "circle.report.drawing": "save",
        "circle.report.figures": "confusion_figure plot_streams",
        "circle.report.report": "ReportFiles write_report",
    },
)
