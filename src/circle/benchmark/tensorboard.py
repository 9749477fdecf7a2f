"""The course of a run in TensorBoard, for those who watch it there; an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from circle.benchmark.results import Row
from circle.errors import CircleError


class TensorBoardLog:
    """Writes accuracy and seconds against the number of classes seen, one folder a run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise CircleError("--tensorboard needs an extra: pip install circle-cil[tensorboard]") from error
        self._writer: Any = SummaryWriter(str(folder))

    def row(self, row: Row, accuracy: float) -> None:
        """One evaluation."""
        self._writer.add_scalar("accuracy/all classes seen", accuracy, row.classes_seen)
        self._writer.add_scalar("seconds/learning", row.learning_seconds, row.classes_seen)
        self._writer.add_scalar("seconds/evaluation", row.evaluation_seconds, row.classes_seen)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
