"""Smaller models for prediction, with the loss measured: `circle compress`."""

from circle.compression.measurement import Validation
from circle.compression.search import Compression, CompressionConfig, compress, compress_weights, explore

__all__ = ["Compression", "CompressionConfig", "Validation", "compress", "compress_weights", "explore"]
