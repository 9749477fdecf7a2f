"""CIRCLE: an image classifier that learns from a stream, one sample at a time, and never forgets."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from circle.registry import public_names

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

HOMES = {
    "circle.errors": "CircleError",
    "circle.extractors": "BiRC2DConfig",
    "circle.heads": "NCMConfig SLDAConfig",
    "circle.files": "load",
    "circle.learner": "CircleClassifier",
    "circle.predictor": "Predictor",
    "circle.presets": "list_presets",
    "circle.registry": "list_datasets list_extractors list_heads list_methods",
    "circle.statistics": "Statistics",
}
__getattr__, __dir__ = public_names(__name__, HOMES)
