"""A graph under construction: ONNX nodes and constants with readable names, and only the batch left open."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from circle.errors import CircleError

OPSET = 20  # onnxruntime 1.17 and later
LIMIT = 2**31 - 1  # bytes that one protobuf message, and so one file, can hold


def import_onnx() -> Any:
    """The onnx package, which is an extra."""
    try:
        import onnx
    except ImportError as error:
        raise CircleError("export needs onnx: pip install 'circle-cil[export]'") from error
    return onnx


def require_room(size: int, what: str) -> None:
    """Refuse constants that no ONNX file can hold, before they are made."""
    if size > LIMIT:
        raise CircleError(
            f"{what}: {size / 1e9:.1f} GB of constants, but an ONNX file holds at most {LIMIT / 1e9:.1f} GB; "
            "use fewer members, shorter features or a linear head"
        )


class Graph:
    """Nodes in the order they are computed. A value is known by its name, which :meth:`add` returns."""

    def __init__(self) -> None:
        self.onnx = import_onnx()
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.size = 0  # bytes of constants so far
        self._scope: tuple[str, ...] = ()
        self._names: dict[str, int] = {}
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}  # constants by type, shape and digest

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside begin with ``name/``."""
        outer, self._scope = self._scope, (*self._scope, name)
        yield
        self._scope = outer

    def name(self, word: str) -> str:
        """A name that no other value has."""
        stem = "/".join([*self._scope, word])
        self._names[stem] = count = self._names.get(stem, 0) + 1
        return stem if count == 1 else f"{stem}_{count}"

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node with one output, whose name is returned; an output called ``name`` is called just that."""
        return self.add_many(operator, *inputs, names=[name or self.name(operator)], **attributes)[0]

    def add_many(self, operator: str, *inputs: str, names: Sequence[str], **attributes: Any) -> Sequence[str]:
        """A node with several outputs, called ``names``."""
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, names, names[0], **attributes))
        return names

    def constant(self, values: Tensor | np.ndarray | Sequence[int] | float, word: str = "constant") -> str:
        """A constant: a tensor or array as it is, whole numbers as int64, a number as a float32 scalar.

        Equal constants are kept once.
        """
        if isinstance(values, Tensor):
            array = values.detach().cpu().contiguous().numpy()
        elif isinstance(values, np.ndarray):
            array = np.ascontiguousarray(values)
        else:
            array = np.array(values, np.float32 if isinstance(values, float) else np.int64)
        key = array.dtype.str, array.shape, hashlib.blake2b(array.data, digest_size=16).digest()
        if key not in self._known:
            self.size += array.nbytes
            require_room(self.size, "this model")
            self._known[key] = self.name(word)
            self.constants[self._known[key]] = self.onnx.numpy_helper.from_array(array, self._known[key])
        return self._known[key]

    # -- what several parts need -----------------------------------------------------------------------------

    def cast(self, value: str, dtype: str) -> str:
        """The value as ``"FLOAT"``, ``"DOUBLE"``, ..., ONNX's names."""
        return self.add("Cast", value, to=getattr(self.onnx.TensorProto, dtype))

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Another shape; a 0 keeps the size of its axis, a -1 takes what is left."""
        return self.add("Reshape", value, self.constant(shape, "shape"))

    def mean(self, value: str, axes: Sequence[int], *, keep: bool = False) -> str:
        return self.add("ReduceMean", value, self.constant(axes, "axes"), keepdims=int(keep))

    def sum(self, value: str, axes: Sequence[int], *, keep: bool = False) -> str:
        return self.add("ReduceSum", value, self.constant(axes, "axes"), keepdims=int(keep))

    def square(self, value: str) -> str:
        return self.add("Mul", value, value)

    def concat(self, values: Sequence[str], axis: int) -> str:
        return values[0] if len(values) == 1 else self.add("Concat", *values, axis=axis)

    def pad(self, value: str, before: Sequence[int], after: Sequence[int], mode: str = "constant") -> str:
        """More entries before and after those of each axis; nothing is added where there are none to add."""
        if not any(before) and not any(after):
            return value
        return self.add("Pad", value, self.constant([*before, *after], "pads"), mode=mode)

    # -- the result ------------------------------------------------------------------------------------------

    def model(
        self,
        inputs: Mapping[str, tuple[str, Sequence[int | str]]],
        outputs: Mapping[str, tuple[str, Sequence[int | str]]],
        metadata: Mapping[str, str],
        producer: tuple[str, str],
    ) -> Any:
        """The ``ModelProto``, checked: inputs and outputs are name -> (type, shape), metadata is text by name."""
        helper = self.onnx.helper

        def described(values: Mapping[str, tuple[str, Sequence[int | str]]]) -> list[Any]:
            kinds = self.onnx.TensorProto
            return [
                helper.make_tensor_value_info(name, getattr(kinds, kind), shape)
                for name, (kind, shape) in values.items()
            ]

        graph = helper.make_graph(
            self.nodes, "circle", described(inputs), described(outputs), list(self.constants.values())
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=helper.find_min_ir_version_for(opsets),
            producer_name=producer[0],
            producer_version=producer[1],
        )
        helper.set_model_props(model, dict(metadata))
        require_room(model.ByteSize(), "this model")
        try:
            self.onnx.checker.check_model(model, full_check=True)
        except (self.onnx.checker.ValidationError, self.onnx.shape_inference.InferenceError) as error:
            raise CircleError(f"onnx does not accept this graph ({_first_line(error)})") from error
        return model


def _first_line(error: Exception) -> str:
    """The reason without the listing of nodes that follows it."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
