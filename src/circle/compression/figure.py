"""The picture of a compression: accuracy against work and against size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circle.compression.measure import Timing
from circle.compression.search import Compression, Step
from circle.report.drawing import STYLES, dress, new_figure, safe_text

NAMES = {
    None: "as it is",
    "weights": "weights in fewer bits",
    "groups": "fewer groups",
    "parts": "fewer parts",
    "rank": "lower rank",
}


def compression_figure(result: Compression, title: str) -> Figure:
    """Validation accuracy of every step against the work of one image alone, of one in a batch, and the file's size."""
    figure = new_figure(9.6, 4.6)
    figure.suptitle(safe_text(title, 100), fontsize=11)
    alone, batch, size = figure.subplots(1, 3, sharey=True)
    _draw(alone, result, lambda step: _work(step.one_image))
    _draw(batch, result, lambda step: _work(step.batch))
    _draw(size, result, lambda step: step.file_bytes / 1000)
    alone.set_ylabel(f"accuracy on {result.images:,} validation images, %")
    for axes in (alone, batch):
        axes.set_xlabel("processor time, model as it is = 1")
    size.set_xlabel("kB")
    dress(alone, "One image")
    dress(batch, f"{result.batch_size} images at once")
    dress(size, "File")
    handles, names = alone.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, handlelength=4, fontsize=8.5)
    return figure


def _work(timing: Timing | None) -> float:
    assert timing is not None, "a picture shows times: explore with timed=True"
    return timing.work_ratio


def _draw(axes: Axes, result: Compression, place: Callable[[Step], float]) -> None:
    for number, (way, name) in enumerate(NAMES.items()):
        steps = [step for step in result.steps if step.way == way]
        if steps:
            style = STYLES[number]
            look: dict[str, Any] = {**style, "linewidth": 1.5, "markersize": 0.65 * style["markersize"]}
            axes.plot([place(step) for step in steps], [100 * step.accuracy for step in steps], label=name, **look)
    look = {"color": "#000000", "marker": "o", "markersize": 12, "markerfacecolor": "none", "linestyle": "none"}
    axes.plot(place(result.chosen), 100 * result.chosen.accuracy, label="chosen", **look)
    axes.set_xlim(left=0)
