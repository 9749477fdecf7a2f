"""CIRCLE: an image classifier that learns from a stream, one sample at a time, and never forgets."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("circle-cil")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

from circle.errors import CircleError
from circle.extractors import BiRC2DConfig
from circle.heads import NCMConfig, SLDAConfig
from circle.learner import CircleClassifier
from circle.presets import list_presets
from circle.registry import list_datasets, list_extractors, list_heads, list_methods
from circle.statistics import Statistics

__all__ = [
    "BiRC2DConfig",
    "CircleClassifier",
    "CircleError",
    "NCMConfig",
    "SLDAConfig",
    "Statistics",
    "list_datasets",
    "list_extractors",
    "list_heads",
    "list_methods",
    "list_presets",
]
