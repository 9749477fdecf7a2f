"""Smaller models for prediction, with the loss measured: `circle compress`."""

from circle.compression.search import Compression, CompressionConfig, compress, compress_weights, explore
from circle.compression.validation import Validation

__all__ = ["Compression", "CompressionConfig", "Validation", "compress", "compress_weights", "explore"]
