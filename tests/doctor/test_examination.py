"""What is found on a machine, and what is wrong with others."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
import torch

from circle.doctor import Finding, examination


def by_name(findings) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Versions that other packages pretend to have; None: not there."""
    pretended: dict[str, str | None] = {}
    real = metadata.version

    def version(name: str) -> str:
        if name not in pretended:
            return real(name)
        if (answer := pretended[name]) is None:
            raise metadata.PackageNotFoundError(name)
        return answer

    monkeypatch.setattr(metadata, "version", version)
    return pretended


def test_packages(versions: dict[str, str | None]) -> None:
    found = by_name(examination.versions())
    assert {"circle", "python", "torch", "numpy", "scikit-learn", "pillow"} <= set(found)
    assert examination.healthy(list(found.values()))
    versions.update({"torch": "1.13.0", "pillow": None})
    found = by_name(examination.versions())
    assert found["torch"].state == "wrong" and "expected >=" in found["torch"].advice
    assert found["pillow"].state == "wrong" and found["pillow"].advice.startswith("missing: pip install 'pillow>=")
    assert not examination.healthy(list(found.values()))


def test_extras(versions: dict[str, str | None]) -> None:
    versions["optuna"] = None
    found = by_name(examination.extras())
    assert found["tune"].advice == "missing: pip install 'circle-cil[tune]'"
    assert found["tune"].state == "note", "nothing essential"
    assert found["data"].state == "good" and "pooch" in str(found["data"].value)


def test_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "DISTRIBUTION", "circle-that-is-not-here")
    assert [finding.name for finding in examination.versions()] == ["circle", "python"]
    assert next(examination.versions()).state == "note"
    assert list(examination.extras()) == []


def test_a_broken_installation_is_told_without_pytorch(versions: dict[str, str | None]) -> None:
    versions["pillow"] = None
    findings = examination.examine()
    assert by_name(findings)["pillow"].state == "wrong"
    assert "self-test" not in {finding.group for finding in findings}


def test_an_installation_that_only_predicts(versions: dict[str, str | None]) -> None:
    versions["torch"] = None
    findings = examination.examine()
    found = by_name(findings)["torch"]
    assert (found.state, found.advice) == ("note", "missing: pip install 'circle-cil[learn]', for all but predicting")
    assert examination.healthy(findings)
    assert "self-test" not in {finding.group for finding in findings}


def test_data_and_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path / "not" / "yet"))
    found = by_name(examination.data())
    assert found["data folder"].state == "good" and found["cifar100"].value is None
    assert found["cifar100"].advice == "circle data fetch cifar100"
    assert found["digits"].value == "comes with scikit-learn"
    assert int(found["free on its disk"].value) > 0  # pyright: ignore[reportArgumentType]
    assert by_name(examination.caches())["features"].value == 0
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path))
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "a.npy").write_bytes(b"12345")
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "train.bin").touch()
    assert by_name(examination.caches())["features"].value == 5
    assert by_name(examination.data())["cifar100"].value == str(tmp_path / "cifar100")
    (tmp_path / "file").touch()
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path / "file"))
    assert by_name(examination.data())["data folder"].state == "note"


def test_fewer_cores_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    torch.set_num_threads(2)
    found = by_name(examination.machine())
    assert found["cores"].value == 1 and found["cores"].advice.startswith("of 8;")
    assert found["threads of PyTorch"].advice.endswith("OMP_NUM_THREADS=1")


def test_machine() -> None:
    found = by_name(examination.machine())
    assert int(found["cores"].value) >= 1  # pyright: ignore[reportArgumentType]
    assert found["memory"].value is None or int(found["memory"].value) > 10**8
