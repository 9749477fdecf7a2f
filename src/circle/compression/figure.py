"""The picture of a compression: accuracy against work and against size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circle.benchmark.drawing import STYLES, dress, new_figure, safe_text
from circle.compression.search import Compression, Step

NAMES = {
    None: "as it is",
    "weights": "weights in fewer bits",
    "groups": "fewer groups",
    "parts": "fewer parts",
    "rank": "lower rank",
}


def compression_figure(result: Compression, title: str) -> Figure:
    """Validation accuracy of every step against the processor time of one image and against the size of the file."""
    figure = new_figure(9.6, 4.6)
    figure.suptitle(safe_text(title, 100), fontsize=11)
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, result, lambda step: step.one_image.work_ratio if step.one_image is not None else 1.0)
    _draw(right, result, lambda step: step.file_bytes / 1000)
    left.set_xlabel("processor time of one image, relative to the model as it is")
    left.set_ylabel(f"accuracy on {result.images:,} validation images, %")
    right.set_xlabel("file, kB")
    dress(left, "Time")
    dress(right, "Size")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, handlelength=4, fontsize=8.5)
    return figure


def _draw(axes: Axes, result: Compression, place: Callable[[Step], float]) -> None:
    for number, (way, name) in enumerate(NAMES.items()):
        steps = [step for step in result.steps if step.way == way]
        if steps:
            look: dict[str, Any] = {**STYLES[number], "linewidth": 1.5}
            axes.plot([place(step) for step in steps], [100 * step.accuracy for step in steps], label=name, **look)
    chosen = result.chosen
    look = {"color": "#000000", "marker": "o", "markersize": 16, "markerfacecolor": "none", "linestyle": "none"}
    axes.plot(place(chosen), 100 * chosen.accuracy, label="chosen", **look)
    axes.set_xlim(left=0)
