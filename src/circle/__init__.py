"""CIRCLE: an image classifier that learns from a stream, one sample at a time, and never forgets."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from circle.errors import CircleError
    from circle.extractors import BiRC2DConfig
    from circle.files import load
    from circle.heads import NCMConfig, SLDAConfig
    from circle.learner import CircleClassifier
    from circle.predictor import Predictor
    from circle.presets import list_presets
    from circle.registry import list_datasets, list_extractors, list_heads, list_methods
    from circle.statistics import Statistics

try:
    __version__ = version("circle-cil")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "BiRC2DConfig",
    "CircleClassifier",
    "CircleError",
    "NCMConfig",
    "Predictor",
    "SLDAConfig",
    "Statistics",
    "list_datasets",
    "list_extractors",
    "list_heads",
    "list_methods",
    "list_presets",
    "load",
]

# Where each public name lives. PyTorch and scikit-learn take seconds to import, so a name is looked up when it is
# first used, and `import circle`, `circle --help` and shell completion do not wait for them.
_HOMES = {
    "BiRC2DConfig": "circle.extractors",
    "CircleClassifier": "circle.learner",
    "CircleError": "circle.errors",
    "NCMConfig": "circle.heads",
    "Predictor": "circle.predictor",
    "SLDAConfig": "circle.heads",
    "Statistics": "circle.statistics",
    "list_datasets": "circle.registry",
    "list_extractors": "circle.registry",
    "list_heads": "circle.registry",
    "list_methods": "circle.registry",
    "list_presets": "circle.presets",
    "load": "circle.files",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use (PEP 562) and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
