"""circle doctor"""

from __future__ import annotations

import json

import pytest

from circle.cli import doctor, run
from circle.doctor import Finding


def test_json_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True
    groups = {finding["group"] for finding in report["findings"]}
    assert groups == {"versions", "extras", "machine", "GPU", "data", "caches", "self-test"}


def test_something_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [
        Finding("versions", "torch", None, "wrong", "missing: pip install 'circle-cil[some]'"),
        Finding("machine", "memory", 25_000_000_000, unit="bytes"),
        Finding("self-test", "exact sums on cpu", True),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert run(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "none (missing: pip install 'circle-cil[some]')" in shown
    assert "25.00 GB" in shown and "yes" in shown and "wrong: torch" in shown
    assert run(["doctor", "--json"]) == 1
