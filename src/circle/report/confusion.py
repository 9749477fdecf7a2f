"""The confusion matrix as a picture."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from matplotlib.figure import Figure

from circle.report.drawing import new_figure, safe_text

MAX_NUMBERED = 20  # classes up to which a cell has room for its number
MAX_NAMED = 100  # classes up to which a row has room for its name


def confusion_figure(labels: Sequence[Hashable], matrix: np.ndarray, title: str) -> Figure:
    """Images [true, predicted] as a grid: the darker a cell, the larger its share of the images of its row.

    Rows are scaled one by one, because classes may have very different numbers of images.
    """
    side = min(max(4.0, 1.8 + 0.35 * len(labels)), 16.0)
    figure = new_figure(side + 0.6, side)
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the class's images")
    axes.set_title(safe_text(title), fontsize=11)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if len(labels) <= MAX_NAMED:
        names = [safe_text(str(label), 24) for label in labels]
        size = 9 if len(labels) <= MAX_NUMBERED else 6
        axes.set_xticks(range(len(labels)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(labels)), names, fontsize=size)
    if len(labels) <= MAX_NUMBERED:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            ink = "white" if shares[row, column] > 0.5 else "black"
            number = f"{matrix[row, column]:,}"
            axes.text(float(column), float(row), number, ha="center", va="center", color=ink, fontsize=8)
    return figure
