"""What all pictures share: line styles that survive greyscale, figures without a display, files written whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from circle.runtime.container import atomic_path

# Line and marker all differ, so that the lines can be told apart in greyscale; the colours are Okabe and Ito's,
# which colour-blind readers can tell apart too. The first lies on top and has the smallest marker, so that points
# on each other all show.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o", "markersize": 6, "zorder": 6},
    {"color": "#E69F00", "linestyle": "--", "marker": "s", "markersize": 8, "zorder": 5},
    {"color": "#555555", "linestyle": ":", "marker": "^", "markersize": 10, "zorder": 4},
    {"color": "#CC79A7", "linestyle": "-.", "marker": "D", "markersize": 10, "zorder": 3},
    {"color": "#009E73", "linestyle": (0, (6, 1, 1, 1, 1, 1)), "marker": "v", "markersize": 10, "zorder": 2.8},
    {"color": "#D55E00", "linestyle": (0, (2, 1)), "marker": "X", "markersize": 10, "zorder": 2.7},
    {"color": "#000000", "linestyle": (0, (10, 3)), "marker": "P", "markersize": 10, "zorder": 2.6},
    {"color": "#56B4E9", "linestyle": (0, (4, 1, 1, 1)), "marker": "*", "markersize": 12, "zorder": 2.5},
)


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches, without pyplot: no global state, no choice of backend forced on the caller."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, heading: str = "") -> None:
    """Heading, light grid and no box: the same for every panel."""
    axes.set_title(heading, fontsize=11)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def safe_text(text: str, limit: int = 60) -> str:
    """Text that is drawn as it stands: dollar signs start no formula, underscores hide no legend entry."""
    text = " ".join(text.split())
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    text = text.replace("$", r"\$")
    return f"\u200a{text}" if text.startswith("_") else text


def save(figure: Figure, path: Path, kind: Literal["png", "svg"]) -> None:
    """Write a figure whole or not at all; the same figure always gives the same bytes."""
    # Without a fixed salt and date every SVG would differ, and so would the report that embeds it.
    metadata = {"Date": None} if kind == "svg" else {}
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "circle"}):
        # A name in a script that the font lacks is drawn as boxes; that is no reason to warn about every letter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=kind, metadata=metadata)
    figure.set_layout_engine("none")  # laid out once: the other kind of file need not do it again
