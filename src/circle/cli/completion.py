"""circle completion: cyclopts writes the scripts, from the commands as they are.

Presets, methods and data sets are in the scripts; the classes of a model are asked for when the Tab key is pressed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from cyclopts import App
from cyclopts.completion import CompletionContext
from cyclopts.completion.detect import ShellDetectionError, detect_shell

import circle.cli
from circle.cli import console
from circle.errors import CircleError

app = App(name="completion", help="Complete commands and flags with the Tab key.")
Shell = Literal["bash", "zsh", "fish"]
MAX_HEADER = 100_000_000  # bytes, the largest that safetensors allows


@app.command
def show(shell: Shell | None = None, /) -> int:
    """Write the completion script to standard output: `source <(circle completion show bash)` tries it out.

    Parameters
    ----------
    shell
        The shell; by default the one that runs this command.
    """
    print(circle.cli.app.generate_completion(shell=shell or _shell()))
    return 0


@app.command
def install(shell: Shell | None = None, /, *, output: Path | None = None, startup: bool = True) -> int:
    """Put the completion script where the shell finds it. Give the command again after an update of CIRCLE.

    Parameters
    ----------
    shell
        The shell; by default the one that runs this command.
    output
        Where the script goes, if not to the shell's own folder for completions.
    startup
        Add a line to ~/.bashrc or ~/.zshrc that loads it; fish needs none.
    """
    shell = shell or _shell()
    if output is not None:
        # An older script of ours is replaced, as in the shell's own folder; what is something else stays.
        if output.exists() and not _is_script(output):
            raise CircleError(f"{output}: exists already, and is no completion script of CIRCLE; choose another name")
        console.check_writable(output, force=True)
    path = circle.cli.app.install_completion(shell=shell, output=output, add_to_startup=startup)
    print(f"{path}: completion for {shell}; it is there in every new shell")
    return 0


def model_classes(context: CompletionContext) -> list[str]:
    """The classes of the model that a command line names, for the Tab key."""
    path = context["model"].raw
    try:
        return class_names(Path(str(path)))
    except (OSError, ValueError, KeyError, TypeError):
        return []  # whoever runs the command is told what is wrong with the file


def class_names(path: Path) -> list[str]:
    """The classes that stand in the header of a model file.

    Read here without PyTorch, which takes longer to import than anybody waits for a Tab key: eight bytes hold the size
    of the safetensors header, whose metadata hold that of the model.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(size, MAX_HEADER)))
    return [_shown(label) for label in json.loads(json.loads(header["__metadata__"]["circle"])["classes"])]


def _shown(label: Any) -> str:
    """A class as commands print and take it; labels that are tuples stand in the file as a dictionary."""
    if isinstance(label, dict):
        return str(tuple(label["tuple"]))
    return str(label)


def _is_script(path: Path) -> bool:
    """Whether a file is a completion script of CIRCLE, by its first line."""
    if not path.is_file():
        return False
    with path.open(errors="replace") as file:
        first = file.readline(80)
    return first.startswith("#") and first.split()[-1:] == ["circle"]


def _shell() -> Shell:
    try:
        shell = detect_shell()
    except ShellDetectionError as error:
        raise CircleError("which shell this is cannot be told: expected bash, zsh or fish to be named") from error
    if shell not in ("bash", "zsh", "fish"):
        raise CircleError(f"shell {shell}: expected bash, zsh or fish")
    return shell
