"""Extractors: frozen maps from an image to a feature vector."""

from circle.extractors.base import Extractor, ImageShape, ParameterCount, build_extractor, extract
from circle.extractors.birc2d import BiRC2D, BiRC2DConfig
from circle.extractors.calibration import Grid, calibrate, calibration_images
from circle.extractors.local_contrast import LocalContrast, LocalContrastConfig
from circle.extractors.patch_rnn import ConvPatchRNNConfig, PatchRNN, PatchRNNConfig
from circle.extractors.resnet import ResNet18, ResNet18BNConfig, ResNet18LNConfig
from circle.extractors.scattering import Scattering, ScatteringConfig
from circle.extractors.vgg import VGG13, VGG13Config

__all__ = [
    "VGG13",
    "BiRC2D",
    "BiRC2DConfig",
    "ConvPatchRNNConfig",
    "Extractor",
    "Grid",
    "ImageShape",
    "LocalContrast",
    "LocalContrastConfig",
    "ParameterCount",
    "PatchRNN",
    "PatchRNNConfig",
    "ResNet18",
    "ResNet18BNConfig",
    "ResNet18LNConfig",
    "Scattering",
    "ScatteringConfig",
    "VGG13Config",
    "build_extractor",
    "calibrate",
    "calibration_images",
    "extract",
]
