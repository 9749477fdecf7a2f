"""The Tab key."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import fails
from cyclopts import App

from circle import CircleClassifier
from circle.cli import run
from circle.cli.completion import class_names
from circle.learning import find_label

BASH = shutil.which("bash")


@pytest.fixture(scope="module", autouse=True)
def made_once() -> Iterator[None]:
    """What commands ask for again is not made again: a script takes more than a second."""
    with pytest.MonkeyPatch.context() as patch:
        make, made = App.generate_completion, {}

        def once(app: App, **wishes: Any) -> str:
            key = (app.name, *sorted(wishes.items()))
            return made[key] if key in made else made.setdefault(key, make(app, **wishes))

        patch.setattr(App, "generate_completion", once)
        yield


@pytest.fixture(scope="module")
def scripts(made_once: None) -> dict[str, str]:
    from circle.cli import app

    return {shell: app.generate_completion(shell=shell) for shell in ("bash", "zsh", "fish")}


def completed(script: str, *words: str) -> set[str]:
    """What bash offers for the last of the words, with nothing but the script loaded."""
    program = """
        source /dev/stdin <<< "$SCRIPT"
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        [[ $(complete -p circle) =~ -F\\ ([^\\ ]+) ]] && "${BASH_REMATCH[1]}" circle "${COMP_WORDS[COMP_CWORD]}" ""
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    command = [str(BASH), "--norc", "--noprofile", "-c", program, "bash", *words]
    done = subprocess.run(command, env={"SCRIPT": script, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return {line.strip() for line in done.stdout.splitlines()}


@pytest.mark.skipif(BASH is None, reason="no bash here")
def test_bash_completes(scripts: dict[str, str]) -> None:
    assert completed(scripts["bash"], "circle", "be") == {"bench"}
    assert completed(scripts["bash"], "circle", "d") == {"data", "demo", "doctor"}
    assert completed(scripts["bash"], "circle", "bench", "r") == {"report", "run"}
    assert "--extractor.width" in completed(scripts["bash"], "circle", "learn", "--extractor.w")


@pytest.mark.skipif(BASH is None, reason="no bash here")
def test_bash_completes_names(scripts: dict[str, str]) -> None:
    assert completed(scripts["bash"], "circle", "learn", "m.circle", "--preset", "fa") == {
        "fast",
        "fast-64",
        "fast-224",
    }
    assert completed(scripts["bash"], "circle", "bench", "run", "--dataset", "dig") == {"digits"}
    assert completed(scripts["bash"], "circle", "data", "fetch", "cif") == {"cifar100"}
    assert completed(scripts["bash"], "circle", "data", "fetch", "dig") == {""}, "nothing to fetch"
    assert completed(scripts["bash"], "circle", "data", "info", "dig") == {"digits"}
    assert completed(scripts["bash"], "circle", "bench", "run", "--method", "f") == {"fecam", "fetril", "finetune"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "pets.circle"
    images = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), dtype=np.uint8)
    CircleClassifier.from_preset("small").fit(images, ["cat", "dog", "guinea pig"]).save(path)
    return path


@pytest.mark.skipif(BASH is None, reason="no bash here")
def test_bash_completes_the_classes_of_a_model(scripts: dict[str, str], model: Path) -> None:
    command = str(Path(sys.executable).parent / "circle")
    assert completed(scripts["bash"], command, "forget", str(model), "") == {"cat", "dog", r"guinea\ pig"}
    assert completed(scripts["bash"], command, "rename", str(model), "d") == {"dog"}
    assert completed(scripts["bash"], command, "forget", str(model.parent / "none"), "") == {""}


def test_classes_are_read_without_pytorch(model: Path) -> None:
    program = "import sys; from circle.cli import run; run(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "__complete", "forget", str(model), ""]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, "PyTorch was imported for the Tab key"
    assert done.stdout.split("\n")[2:5] == ["cat", "dog", "guinea pig"]


@pytest.mark.parametrize(
    ("labels", "shown"), [([3, 10], ["3", "10"]), ([("a", 1), ("b", 2)], ["('a', 1)", "('b', 2)"])]
)
def test_class_names_are_those_that_commands_take(tmp_path: Path, labels: list[Any], shown: list[str]) -> None:
    images = np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3), dtype=np.uint8)
    model = CircleClassifier.from_preset("small").partial_fit(images, labels)
    model.save(tmp_path / "model")
    assert class_names(tmp_path / "model") == shown
    assert [find_label(model, name) for name in shown] == labels


def test_every_shell_knows_names_and_asks_for_classes(scripts: dict[str, str]) -> None:
    for shell, script in scripts.items():
        for word in ("best-224", "efc_plus_plus", "omniglot", "__complete"):
            assert word in script, (shell, word)


def test_every_shell_knows_every_command(scripts: dict[str, str]) -> None:
    for shell, script in scripts.items():
        for word in ("learn", "predict", "bench", "ablation", "completion", "head.ridge"):
            assert word in script, (shell, word)
    assert scripts["zsh"].startswith("#compdef circle")
    assert "complete -c circle" in scripts["fish"]


def test_show_and_install(tmp_path: Path, capsys: pytest.CaptureFixture[str], scripts: dict[str, str]) -> None:
    assert run(["completion", "show", "fish"]) == 0
    assert capsys.readouterr().out.strip() == scripts["fish"].strip()
    path = tmp_path / "circle.bash"
    assert run(["completion", "install", "bash", "--output", str(path), "--no-startup"]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: completion for bash")
    assert path.read_text().strip() == scripts["bash"].strip()


def test_other_files_are_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scripts: dict[str, str]
) -> None:
    other = tmp_path / "notes"
    other.write_text("# what I wanted to say\n")
    for path, words in [
        (other, "exists already"),
        (tmp_path, "exists already"),
        (tmp_path / "no" / "script", "expected a file in a folder that exists"),
    ]:
        assert f"{path}: " in (line := fails(["completion", "install", "bash", "--output", path], capsys))
        assert words in line
    assert other.read_text() == "# what I wanted to say\n"
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    for shell, script in scripts.items():
        path = tmp_path / shell
        path.write_text(f"{script}\nof an earlier version")
        assert run(["completion", "install", shell, "--output", str(path), "--no-startup"]) == 0
        assert path.read_text().strip() == script.strip()


def test_at_start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(App, "generate_completion", lambda *_, **__: "# the script")  # tested above; takes a while
    for _ in range(2):
        assert run(["completion", "install", "bash"]) == 0
    path = tmp_path / ".local" / "share" / "bash-completion" / "completions" / "circle"
    assert path.read_text().startswith("# the script")
    assert (tmp_path / ".bashrc").read_text().count(f'. "{path}"') == 1, "one line, however often it is installed"


def test_an_unknown_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from circle.cli import completion

    def nobody_knows() -> str:
        raise completion.ShellDetectionError("no idea")

    monkeypatch.setattr(completion, "detect_shell", nobody_knows)
    assert run(["completion", "show"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(completion, "detect_shell", lambda: "powershell")
    assert run(["completion", "show"]) == 1
    assert "expected bash, zsh or fish" in capsys.readouterr().err
