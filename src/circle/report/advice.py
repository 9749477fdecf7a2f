"""The picture of an advice: measured error of ensembles against the decomposition and the paper's bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circle.errors import counted
from circle.paper.advise import Advice
from circle.report.drawing import STYLES, dress, new_figure, safe_text

_MEASURED, _PREDICTED, _BOUND, _BIAS = STYLES[0], STYLES[1], STYLES[2], STYLES[4]


def advice_figure(advice: Advice, title: str) -> Figure:
    """Squared error against m for a fixed budget: with the bound on the left; without it, and closer, on the right.

    Filled markers rest on measured B_m and V_m, hollow ones on a law for one of them or both.
    """
    figure = new_figure(9.6, 4.6)
    figure.suptitle(safe_text(title, 100), fontsize=11)
    left, right = figure.subplots(1, 2)
    _draw_bound(left, advice)
    _draw(left, advice, [each.bias for each in advice.allocations], _BIAS, "squared bias with label noise: $B_m$")
    for axes in (left, right):
        _draw_errors(axes, advice)
        _mark(axes, advice)
        _scale(axes, [each.members for each in advice.allocations])
    left.set_ylabel("squared error on validation images")
    left.set_ylim(bottom=0)
    dress(left, "With the paper's bound")
    dress(right, "Closer")
    if any(each.origin != "measured" for each in advice.allocations):
        look = {**_PREDICTED, "color": "#000000", "linestyle": "none", "markerfacecolor": "white"}
        left.plot([], [], label="hollow: $V_m$ or both extrapolated", **look)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, handlelength=4, fontsize=8.5)
    return figure


def _scale(axes: Axes, places: Sequence[int]) -> None:
    """A tick for every m, and a number where it does not run into the one before."""
    axes.set_xscale("log", base=2)
    labels, last = [], 0.0
    for place in places:
        labels.append(str(place) if place > last else "")
        last = place * places[-1] ** 0.05 if labels[-1] else last
    axes.set_xticks(places, labels)
    axes.minorticks_off()
    axes.set_xlabel("m (members of a head)")


def _draw_errors(axes: Axes, advice: Advice) -> None:
    _draw(axes, advice, [each.predicted for each in advice.allocations], _PREDICTED, "predicted: $B_m + V_m\\,m/n$")
    measured = [(each.members, each.ensemble.error) for each in advice.allocations if each.ensemble is not None]
    if measured:
        # No line: with no more members than the budget it would hide the predicted one, which is the same by algebra.
        look = {**_MEASURED, "linestyle": "none"}
        axes.plot(*zip(*measured, strict=True), label=f"measured: ensembles of {advice.budget} members", **look)


def _draw_bound(axes: Axes, advice: Advice) -> None:
    law = advice.laws.power
    if law is not None:
        places = np.geomspace(1, advice.budget, 200)
        label = (
            f"the paper's bound: $A\\,m^{{-2\\alpha}} + m/n$, $A$ = {law.amplitude:.3g}, $\\alpha$ = {law.alpha:.3g}"
        )
        values = [law(place) + place / advice.budget for place in places]
        axes.plot(places, values, color="#000000", linewidth=1.2, zorder=2.4, label=label)
    look = {**_BOUND, "linestyle": "none"}
    _draw(axes, advice, [each.bound for each in advice.allocations], look, "bound with this $B_m$: $B_m + m/n$")


def _draw(axes: Axes, advice: Advice, values: Sequence[float], style: dict[str, Any], label: str) -> None:
    """A line through all allocations, with markers that tell what was measured."""
    places = [each.members for each in advice.allocations]
    look = {**style, "markersize": 0.8 * style["markersize"], "markeredgewidth": 1.3, "linewidth": 1.7}
    axes.plot(places, values, label=label, **look)
    hollow = [each.origin != "measured" for each in advice.allocations]
    if any(hollow):
        axes.plot(places, values, markevery=hollow, **{**look, "linestyle": "none", "markerfacecolor": "white"})


def _mark(axes: Axes, advice: Advice) -> None:
    """Where the recommendation and the bound's minimum are."""
    look: dict[str, Any] = {"linewidth": 1.2, "zorder": 1}
    best = advice.best
    label = f"recommended: k = {counted(best.groups, 'group')} of m = {best.members}"
    axes.axvline(best.members, color=_PREDICTED["color"], linestyle="-", label=label, **look)
    if advice.best_real_members is not None:
        label = f"minimum of the paper's bound: $m^*$ = {advice.best_real_members:.3g}"
        axes.axvline(advice.best_real_members, color="#000000", linestyle=(0, (1, 2)), label=label, **look)
