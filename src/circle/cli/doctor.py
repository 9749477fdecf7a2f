"""circle doctor"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from circle.cli import console
from circle.doctor import Finding, examine, healthy

MARKS = {"good": Text("ok", "green"), "note": Text("note", "yellow"), "wrong": Text("wrong", "red")}


def doctor(*, as_json: Annotated[bool, Parameter(name="--json", negative=())] = False) -> int:
    """Look at this machine: packages, memory, data sets, caches, GPU, and whether it computes exactly.

    The exit code is 1 if something that CIRCLE cannot do without is wrong.

    Parameters
    ----------
    as_json
        Write JSON instead of a table.
    """
    findings = examine()
    if as_json:
        print(json.dumps({"healthy": healthy(findings), "findings": [asdict(each) for each in findings]}, indent=2))
        return 0 if healthy(findings) else 1
    table = Table(box=None, show_header=False)
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            table.add_row(Text(group, "bold"))
        absent = finding.value is None and finding.state == "good"  # a data set, a GPU: nothing to praise
        table.add_row(f"  {finding.name}", "" if absent else MARKS[finding.state], _words(finding))
    out = console.output()
    out.print(table)
    wrong = [finding.name for finding in findings if finding.state == "wrong"]
    out.print(Text.assemble(("wrong:", "red"), f" {', '.join(wrong)}") if wrong else "All that CIRCLE needs is here.")
    return 1 if wrong else 0


def _words(finding: Finding) -> str:
    if finding.value is None:
        value = "none"
    elif finding.value is True or finding.value is False:
        value = "yes" if finding.value else "no"
    elif finding.unit == "bytes":
        value = console.size(float(finding.value))
    else:
        value = f"{finding.value} {finding.unit}".rstrip()
    return f"{value} ({finding.advice})" if finding.advice else value
