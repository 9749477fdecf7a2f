"""Models as ONNX files: from uint8 images to probabilities in one graph, checked against the original."""

from circle.export.checking import Agreement, Export, Speed, export_onnx
from circle.export.extractors import form_of
from circle.export.model import Layout, onnx_model

__all__ = ["Agreement", "Export", "Layout", "Speed", "export_onnx", "form_of", "onnx_model"]
