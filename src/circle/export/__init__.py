"""Models as ONNX files: from uint8 images to probabilities in one graph, checked against the original."""

from circle.export.checking import Agreement, Speed
from circle.export.extractors import form_of
from circle.export.model import Layout, onnx_model
from circle.export.writing import Export, export_onnx

__all__ = ["Agreement", "Export", "Layout", "Speed", "export_onnx", "form_of", "onnx_model"]
