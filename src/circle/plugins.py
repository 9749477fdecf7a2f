"""Parts from files outside of the package: CIRCLE_PLUGINS names Python files whose decorators register them."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from circle.errors import CircleError

VARIABLE = "CIRCLE_PLUGINS"


def load_plugins() -> None:
    """Run the files that the environment variable names, each once; more than one with the system's path separator."""
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_plugin(Path(name))


def load_plugin(path: Path) -> None:
    """Run a Python file, so that what it registers can be chosen by name."""
    module_name = "circle_plugin_" + str(path.resolve()).encode().hex()
    if module_name in sys.modules:
        return
    if path.suffix != ".py" or not path.is_file():
        raise CircleError(f"{path}: named in {VARIABLE}, but there is no such Python file")
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise CircleError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up while it is made
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # Whatever a user's own code does wrong, the line names the file and the mistake.
        del sys.modules[module_name]
        raise CircleError(
            f"{path}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from error
