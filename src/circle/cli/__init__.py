"""The ``circle`` command. Each command group has a file of its own, imported when it is called."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

import circle.errors
from circle.distributed import environment
from circle.registry import missing_extra

_HELP = """Teach an image classifier from a stream, one sample at a time. It never forgets.

`circle learn pets.circle photos/` learns the class folders in photos/ and keeps the model in pets.circle;
`circle predict pets.circle cat.jpg` asks it; run `circle learn` again with more images, or other classes,
whenever there are some.
"""

_given: list[str] = []

# These divide their work among the processes of torchrun, or say themselves what to do instead.
_FOR_SEVERAL = {("learn",), ("bench", "run"), ("bench", "tune")}

HELP_ALL = "--help-all"  # help with the settings that --help leaves out

app = App(
    name="circle",
    help=_HELP,
    help_format="markdown",
    help_flags=("--help", "-h", HELP_ALL),
    version=lambda: circle.__version__,
)
for name, text in {
    "learn": "Learn labelled images; creates the model or continues it.",
    "predict": "Say what images show, with probabilities.",
    "evaluate": "Measure accuracy on labelled images.",
    "info": "Show what a model has learned, its settings and its sizes.",
    "forget": "Let a class leave a model.",
    "rename": "Give a class of a model another name.",
    "pack": "Write the small model that only predicts.",
    "export": "Write a model as one ONNX file, checked in onnxruntime.",
    "compress": "Write a smaller, faster model that only predicts, with its loss measured.",
    "merge": "Add up what several models have learned.",
    "serve": "Teach and ask a model in the browser; also a JSON API.",
    "advise": "Say how to divide a budget of members into groups.",
    "demo": "Class-incremental learning of handwritten digits, in under a minute.",
    "doctor": "Look at this machine: packages, memory, data sets, and whether it computes exactly.",
}.items():
    app.command(f"circle.cli.{name}:{name}", name=name, help=text)


app.command("circle.cli.data:app", name="data", help="List, fetch and describe data sets.")
app.command("circle.cli.bench:app", name="bench", help="Run class-incremental experiments and report them.")
app.command("circle.cli.completion:app", name="completion", help="Complete commands and flags with the Tab key.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error a user can cause is one line on stderr and a non-zero exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0 well, 1 an error, 2 wrong usage, 130 interrupted."""
    _given[:] = arguments
    try:
        _check_processes(arguments)
        code = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        # All processes of a job have the same command line: one of them says what is wrong with it.
        return _fail(_usage(error), 2) if environment.is_rank_zero() else 2
    except circle.errors.ReportedByRankZeroError:
        return 1
    except circle.errors.CircleError as error:
        return _fail(str(error), 1)
    except ImportError as error:
        # A command's module is imported when it is called, and cyclopts wraps what that raises.
        reason = missing_extra(error) or missing_extra(error.__cause__)
        if reason is None:
            raise
        return _fail(reason, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has left; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        return _fail("not enough memory: use a smaller preset, or fewer members", 1)
    except RuntimeError as error:
        # PyTorch has no class of its own for this.
        if "allocate memory" not in str(error):
            raise
        return _fail("not enough memory: use a smaller preset, or fewer members", 1)
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}", 1)
    return code if isinstance(code, int) else 0


def _check_processes(arguments: Sequence[str]) -> None:
    """Refuse what several processes would each do in full, and write over one another."""
    if environment.world_size() == 1:
        return
    command, _, _ = app.parse_commands(list(arguments))
    if command and command not in _FOR_SEVERAL and not command[-1].startswith("-"):  # help is given to anybody
        environment.require_one_process(" ".join(command), "`learn` and `bench run` divide their work")


def was_given(flag: str) -> bool:
    """Whether a flag stands in the command being run."""
    return flag in _given


def command_line() -> str:
    """The command being run, as it was given but for the path of this installation; for records."""
    return shlex.join(["circle", *_given])


def _usage(error: CycloptsError) -> str:
    return f"{' '.join(str(error).split())} (circle --help tells more)"


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"circle: error: {line}", file=sys.stderr)
    return code
