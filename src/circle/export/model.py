"""A whole classifier as one ONNX graph: uint8 images in, probabilities and the best class out."""

from __future__ import annotations

import importlib
import json
from typing import Any, Literal

import torch

from circle import __version__
from circle.ensemble import Group
from circle.export.extractors import add_extractor
from circle.export.graph import Graph
from circle.export.heads import add_scores
from circle.labels import encode_labels
from circle.learner import CircleClassifier

Layout = Literal["NHWC", "NCHW"]
# The files that register the forms of extractors. They are loaded with this one, which every way to ``form_of`` passes,
# so that a plug-in's form for the same extractor comes later and holds.
FORM_FILES = (
    "circle.export.integers",
    "circle.export.convolutions",
    "circle.export.reservoirs",
    "circle.export.scattering",
)
INPUT, PROBABILITIES, BEST = "images", "probabilities", "best"

for forms in FORM_FILES:
    importlib.import_module(forms)


def onnx_model(model: CircleClassifier, layout: Layout = "NHWC") -> Any:
    """The ``onnx.ModelProto`` of a model of either kind, for any number of images at a time.

    ``images`` uint8 [batch, H, W, C], or [batch, C, H, W] with the layout NCHW -> ``probabilities`` float32
    [batch, classes] and ``best`` int64 [batch], the column of the most probable class.
    """
    model._require_learned()
    graph = Graph()
    images = INPUT if layout == "NCHW" else graph.add("Transpose", INPUT, perm=[0, 3, 1, 2])
    images = graph.cast(images, "FLOAT")
    head = model._head_config()
    temperature = graph.constant(torch.tensor(head.temperature, dtype=torch.float64), "temperature")
    heads = []
    for index, (group, scores) in enumerate(zip(model.groups_, model._materialised(), strict=True)):
        with graph.scope(f"group{index}"):
            positions = add_positions(graph, group, images, positions_name(index))
            values = add_scores(graph, scores, graph.cast(positions, "DOUBLE"), head.name)
            heads.append(graph.add("Softmax", graph.add("Div", values, temperature), axis=1))
    average = heads[0]
    if len(heads) > 1:
        count = graph.constant(torch.tensor(float(len(heads)), dtype=torch.float64), "heads")
        average = graph.add("Div", graph.add("Sum", *heads), count)
    graph.add("Cast", average, name=PROBABILITIES, to=graph.onnx.TensorProto.FLOAT)
    graph.add("ArgMax", average, name=BEST, axis=1, keepdims=0)
    shape = model.image_
    sides = {"NHWC": [shape.height, shape.width, shape.channels], "NCHW": [shape.channels, shape.height, shape.width]}
    return graph.model(
        {INPUT: ("UINT8", ["batch", *sides[layout]])},
        {PROBABILITIES: ("FLOAT", ["batch", len(model._classes())]), BEST: ("INT64", ["batch"])},
        metadata(model, layout),
        ("circle-cil", __version__),
    )


def positions_name(group: int) -> str:
    """What the graph calls the features of a group, as positions on its grid."""
    return f"group{group}/positions"


def add_positions(graph: Graph, group: Group, images: str, name: str) -> str:
    """``Group.features``: pixels float32 [N, C, H, W] from 0 to 255 -> positions on the grid, float32 [N, size].

    q = clamp(round((z - offset) / scale), -L, L). ONNX and PyTorch both round halves to the even neighbour.
    """
    members = []
    for index, member in enumerate(group.members):
        with graph.scope(f"member{index}"):
            members.append(add_extractor(graph, member, images))
    grid = group.grid
    centred = graph.add("Sub", graph.concat(members, 1), graph.constant(grid.offset, "offset"))
    scale = graph.constant(grid.scale, "scale")
    if not group.quantise:
        return graph.add("Div", centred, scale, name=name)
    positions = graph.add("Div", centred, scale)
    limit = float(torch.iinfo(grid.dtype).max)
    return graph.add("Clip", graph.add("Round", positions), graph.constant(-limit), graph.constant(limit), name=name)


def metadata(model: CircleClassifier, layout: Layout) -> dict[str, str]:
    """What a program needs to know besides the graph, as text by name; lists and settings are JSON."""
    image = model.image_
    return {
        "classes": encode_labels(model._classes()),
        "layout": layout,
        "input": "uint8, 0 to 255, RGB" if image.channels == 3 else f"uint8, 0 to 255, {image.channels} channels",
        "height": str(image.height),
        "width": str(image.width),
        "channels": str(image.channels),
        "aspect": image.aspect,
        "background": str(image.background),
        "temperature": repr(model._head_config().temperature),
        "settings": json.dumps(model.settings()),
        "samples": str(model.samples_),
        "version": __version__,
    }
