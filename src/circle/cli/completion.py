"""circle completion: cyclopts writes the scripts, from the commands as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App
from cyclopts.completion.detect import ShellDetectionError, detect_shell

import circle.cli
from circle.cli import console
from circle.errors import CircleError

app = App(name="completion", help="Complete commands and flags with the Tab key.")
Shell = Literal["bash", "zsh", "fish"]


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
