"""How much memory a method will take, from its settings and the sizes of the tasks alone."""

from __future__ import annotations

import torch
from torch import Tensor

from circle.baselines.costs import Course
from circle.baselines.settings import TrainerConfig
from circle.baselines.task_data import count_parameters
from circle.baselines.trainer import SCORING_BATCH
from circle.extractors import ImageShape
from circle.registry import entry

NETWORKS = 5  # weights, their gradients, up to two moments, the former network


def memory_needed(config: TrainerConfig, shape: ImageShape, course: Course) -> int:
    """Bytes at the end of the stream, in the middle of its largest task:

    images of the task and an augmented copy; weights with gradients, moments and a former self; what the gradient of
    a batch needs; features of the task; and what the method keeps of all classes.
    """
    method = entry("method", config.name).part(config, seed=0)
    network = method.new_network(shape.channels, torch.Generator().manual_seed(0))
    pixels = shape.channels * shape.height * shape.width
    largest, classes = max(course.images), sum(course.classes)
    batch = max(int(getattr(config, "batch_size", 1)) * method.copies, SCORING_BATCH // 2)
    return (
        2 * largest * pixels
        + 4 * NETWORKS * (count_parameters(network) + method.rows_per_class * classes * network.size)
        + batch * (activation_bytes(network, shape) + 4 * pixels)
        + 2 * 4 * largest * network.size
        + method.kept_bytes(classes, network.size)
    )


def activation_bytes(network: torch.nn.Module, shape: ImageShape) -> int:
    """Bytes that the gradient of one image keeps until it is taken, counted in a pass of two."""
    seen: dict[int, int] = {}
    own = {parameter.data_ptr() for parameter in network.parameters()}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            seen[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    images = torch.zeros(2, shape.channels, shape.height, shape.width)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = network(images)
    del result
    return sum(seen.values()) // 2
