"""Smaller models for prediction, with the loss measured: `circle compress`."""

from circle.compression.search import Compression, compress, compress_weights, explore
from circle.compression.validation import Validation
from circle.compression.wishes import Wishes

__all__ = ["Compression", "Validation", "Wishes", "compress", "compress_weights", "explore"]
