"""Which class comes when: the class order and its split into tasks, from a seed of their own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

from circle.errors import CircleError

Label = TypeVar("Label", bound=Hashable)


def class_order(classes: Sequence[Label], class_order_seed: int = 0) -> list[Label]:
    """The classes in the order in which the stream brings them.

    A permutation of ``classes`` drawn from ``numpy.random.Generator(PCG64(class_order_seed))``. It depends on
    the order in which the classes are given (so give them sorted) and on nothing else: the model's ``seed``
    never enters here.

    >>> class_order(["ant", "bee", "cow", "dog"])
    ['cow', 'ant', 'bee', 'dog']
    """
    if len(set(classes)) != len(classes):
        repeated = next(label for index, label in enumerate(classes) if label in classes[:index])
        raise CircleError(f"class {repeated!r} is listed twice: expected every class once")
    if class_order_seed < 0:
        raise CircleError(f"class_order_seed = {class_order_seed}: expected 0 or more")
    generator = np.random.Generator(np.random.PCG64(class_order_seed))
    return [classes[position] for position in generator.permutation(len(classes))]


def split_tasks(classes: Sequence[Label], tasks: int, class_order_seed: int = 0) -> list[list[Label]]:
    """The classes of each task: the class order cut into ``tasks`` equal parts.

    >>> split_tasks(["ant", "bee", "cow", "dog"], tasks=2)
    [['cow', 'ant'], ['bee', 'dog']]
    """
    if tasks < 1 or not classes or len(classes) % tasks:
        divisors = [str(number) for number in range(1, len(classes) + 1) if len(classes) % number == 0]
        expected = f"expected one of {', '.join(divisors)}" if divisors else "expected at least one class"
        raise CircleError(f"{len(classes)} classes cannot be split into {tasks} equal tasks: {expected}")
    order = class_order(classes, class_order_seed)
    size = len(order) // tasks
    return [order[start : start + size] for start in range(0, len(order), size)]


def task_sizes(tasks: str | int, classes: int) -> list[int]:
    """Numbers of classes per task from a specification.

    ``"20"`` is 20 equal tasks. ``"50+50x1"`` is a first task of 50 classes and then 50 tasks of one (a warm start);
    the parts must add up to all classes.

    >>> task_sizes("4", 12), task_sizes("6+3x2", 12)
    ([3, 3, 3, 3], [6, 2, 2, 2])
    """
    text = str(tasks)
    if text.isdecimal():
        return [len(task) for task in split_tasks(range(classes), int(text))]
    sizes: list[int] = []
    for part in text.split("+"):
        count, _, size = part.rpartition("x")
        if not size.isdecimal() or not (count or "1").isdecimal():
            raise CircleError(f"tasks {text!r}: expected a number such as 20, or sizes such as 50+50x1")
        sizes += [int(size)] * int(count or 1)
    if sum(sizes) != classes or 0 in sizes:
        raise CircleError(
            f"tasks {text!r} hold {sum(sizes)} classes: expected all {classes}, at least one in each task"
        )
    return sizes
