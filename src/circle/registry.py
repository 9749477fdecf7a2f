"""Names for everything that can be chosen by name: extractors, heads, methods, data sets.

One decorator registers a part together with the config that describes it; the contracts in
``tests/contracts`` then run on it by themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from circle.config import Config, check_names
from circle.errors import CircleError

PLUGINS_VARIABLE = "CIRCLE_PLUGINS"  # names Python files whose decorators register parts of one's own

Kind = Literal["extractor", "head", "method", "dataset"]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Entry:
    """A registered part and the class of its settings.

    Attributes
    ----------
    part : type or callable
        What was registered.
    config : type of Config
        Its settings.
    """

    part: Any
    config: type[Config]


# The rooms that register each kind; they are imported on demand to keep start-up short.
ROOMS: dict[str, str] = {
    "extractor": "circle.extractors",
    "head": "circle.heads",
    "method": "circle.baselines",
    "dataset": "circle.data",
}
_ENTRIES: dict[str, dict[str, Entry]] = {"extractor": {}, "head": {}, "method": {}, "dataset": {}}


def register(kind: Kind, config: type[Config]) -> Callable[[Part], Part]:
    """Class decorator: make a part available under ``config.name``.

    Parameters
    ----------
    kind : {"extractor", "head", "method", "dataset"}
        What the part is.
    config : type of Config
        The settings that it is built from; its ``name`` must be free.

    Examples
    --------
    A head of one's own, in a file that ``CIRCLE_PLUGINS`` names::

        @register("head", MyHeadConfig)
        class MyHead(Head): ...
    """

    def add(part: Part) -> Part:
        if not config.name or config.name in _ENTRIES[kind]:
            raise TypeError(f"{kind} {config.name!r} needs a name of its own")
        _ENTRIES[kind][config.name] = Entry(part, config)
        return part

    return add


def entry(kind: Kind, name: str) -> Entry:
    """The registered part of that name, or an error that names the nearest."""
    _load(kind)
    check_names([name], _ENTRIES[kind], kind)
    return _ENTRIES[kind][name]


def resolve(kind: Kind, choice: str | Mapping[str, Any] | Config) -> Config:
    """A config from any way of naming a part: by name, by a mapping with the name, or by a config itself.

    >>> resolve("head", "slda") == resolve("head", {"name": "slda"})
    True
    >>> resolve("head", {"name": "slda", "ridge": 2}).ridge
    2.0
    """
    if isinstance(choice, Config):
        return choice
    values = {"name": choice} if isinstance(choice, str) else dict(choice)
    return entry(kind, str(values.get("name", ""))).config.from_dict(values)


def list_extractors() -> list[str]:
    """Names of all extractors, plug-ins among them."""
    return _list("extractor")


def list_heads() -> list[str]:
    """Names of all heads."""
    return _list("head")


def list_methods() -> list[str]:
    """Names of all methods that CIRCLE is compared with."""
    return _list("method")


def list_datasets() -> list[str]:
    """Names of all data sets, on this machine or not."""
    return _list("dataset")


def _list(kind: Kind) -> list[str]:
    _load(kind)
    return sorted(_ENTRIES[kind])


def _load(kind: Kind) -> None:
    """Import the room that registers this kind."""
    importlib.import_module(ROOMS[kind])
    load_plugins()


def load_plugins() -> None:
    """Run the files that ``CIRCLE_PLUGINS`` names, each once; several are separated as in PATH."""
    for name in filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep)):
        load_plugin(Path(name))


def load_plugin(path: Path) -> None:
    """Run a Python file, so that what it registers can be chosen by name."""
    module_name = "circle_plugin_" + str(path.resolve()).encode().hex()
    if module_name in sys.modules:
        return
    if path.suffix != ".py" or not path.is_file():
        raise CircleError(f"{path}: named in {PLUGINS_VARIABLE}, but there is no such Python file")
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise CircleError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up while it is made
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # Whatever goes wrong in a user's own code, one line names the file and the error.
        del sys.modules[module_name]
        raise CircleError(
            f"{path}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from error


LEARNING = ("torch", "sklearn", "scipy", "matplotlib")  # packages of the extra `learn`, by their import names


def missing_extra(error: BaseException | None) -> str | None:
    """What to install where an import failed for want of the extra `learn`, in one line."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in LEARNING:
        return None
    return f"{name} is not installed: all but predicting needs it; pip install 'circle-cil[learn]'"


def public_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` (PEP 562) of a package whose public names are imported when first used.

    PyTorch, scikit-learn and matplotlib take seconds to import: `import circle`, `circle --help` and the Tab key do
    not wait for them. ``homes`` has the names of each module, with spaces between.
    """
    found = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(found[name]), name)
        except ModuleNotFoundError as error:
            raise ImportError(missing_extra(error) or str(error)) from error
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *found})
