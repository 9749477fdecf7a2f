"""Extractors: frozen maps from an image to a feature vector."""

from circle.extractors.base import Extractor, ImageShape, ParameterCount, build_extractor, extract
from circle.extractors.birc2d import BiRC2D, BiRC2DConfig
from circle.extractors.calibration import Grid, calibrate, pink_noise

__all__ = [
    "BiRC2D",
    "BiRC2DConfig",
    "Extractor",
    "Grid",
    "ImageShape",
    "ParameterCount",
    "build_extractor",
    "calibrate",
    "extract",
    "pink_noise",
]
