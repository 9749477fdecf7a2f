"""What CIRCLE finds on this machine: packages, processor, memory, data, caches, and whether it computes exactly."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

import circle
from circle import registry
from circle.data.download import cache_folder, whereabouts
from circle.errors import CircleError

DISTRIBUTION = "circle-cil"
LOW_MEMORY = 1_000_000_000  # preset `fast` learns in about half of it


@dataclass(frozen=True)
class Finding:
    """What was found, and whether it is as it should be.

    ``good``: as it should be. ``note``: worth knowing, and CIRCLE works. ``wrong``: it does not work, or not exactly.
    ``unit`` tells what a number counts; ``advice`` what to do about it.
    """

    group: str
    name: str
    value: str | int | float | bool | None
    state: Literal["good", "note", "wrong"] = "good"
    advice: str = ""
    unit: Literal["", "bytes", "GFLOP/s"] = ""


def examine() -> list[Finding]:
    """All findings, in the order of a table. What cannot be looked at because PyTorch is missing is left out."""
    found = [*versions(), *extras(), *data(), *caches()]
    if any(finding.state == "wrong" or not finding.value for finding in found if finding.group == "versions"):
        return found
    from circle.doctor.self_test import self_test

    devices = list(gpus())
    tested = ["cpu", *("cuda" for finding in devices if finding.name == "CUDA" and finding.value)]
    return [*found, *machine(), *devices, *(result for device in tested for result in self_test(device))]


def healthy(findings: list[Finding]) -> bool:
    return all(finding.state != "wrong" for finding in findings)


def versions() -> Iterator[Finding]:
    """Python, CIRCLE and the packages that it needs to learn, against the versions that it asks for.

    What only learning needs may be missing: then the machine predicts, and that is worth a note.
    """
    installed = _distribution() is not None
    advice = "" if installed else "not installed, so nobody knows which packages it asks for: pip install ."
    yield Finding("versions", "circle", circle.__version__, "good" if installed else "note", advice)
    enough = sys.version_info >= (3, 11)
    advice = "" if enough else "expected Python 3.11 or newer"
    yield Finding("versions", "python", platform.python_version(), "good" if enough else "wrong", advice)
    for requirement in _requirements(""):
        version = _version(requirement)
        advice = _advice(requirement, version, f"pip install '{requirement.name}{requirement.specifier}'")
        yield Finding("versions", requirement.name, version, "wrong" if advice else "good", advice)
    for requirement in _requirements("learn"):
        version = _version(requirement)
        advice = _advice(requirement, version, f"pip install '{DISTRIBUTION}[learn]', for all but predicting")
        state = "good" if not advice else "note" if version is None else "wrong"
        yield Finding("versions", requirement.name, version, state, advice)


def extras() -> Iterator[Finding]:
    """The optional parts: present, or the command that brings them."""
    distribution = _distribution()
    for extra in (distribution.metadata.get_all("Provides-Extra") if distribution else None) or []:
        if extra == "learn":  # told with the versions
            continue
        needed = [each for each in _requirements(extra) if each.name != DISTRIBUTION]
        install = f"pip install '{DISTRIBUTION}[{extra}]'"
        advice = [line for each in needed if (line := _advice(each, _version(each), install))]
        value = ", ".join(f"{each.name} {_version(each) or 'missing'}" for each in needed)
        yield Finding("extras", extra, value, "note" if advice else "good", advice[0] if advice else "")


def machine() -> Iterator[Finding]:
    """Processor, cores, threads and memory."""
    from circle.benchmark.results import environment
    from circle.machine import available_memory, total_memory

    facts = environment()["machine"]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else facts["cores"]
    yield Finding("machine", "system", f"{facts['system']}, {facts['processor']}")
    advice = f"of {facts['cores']}; this process may not use the others" if usable < facts["cores"] else ""
    yield Finding("machine", "cores", usable, "note" if advice else "good", advice)
    crowded = facts["threads"] > usable
    advice = f"more threads than cores wait for each other: OMP_NUM_THREADS={usable}" if crowded else ""
    yield Finding("machine", "threads of PyTorch", facts["threads"], "note" if crowded else "good", advice)
    yield Finding("machine", "memory", total_memory(), unit="bytes")
    free = available_memory()
    little = free is not None and free < LOW_MEMORY
    advice = "little: use the preset small" if little else ""
    yield Finding("machine", "memory available", free, "note" if little else "good", advice, "bytes")


def gpus() -> Iterator[Finding]:
    """Devices besides the processor; none is needed."""
    import torch

    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield Finding("GPU", "CUDA", ", ".join(cuda) if torch.cuda.is_available() else None)
    yield Finding("GPU", "MPS", torch.backends.mps.is_available() or None)


def data() -> Iterator[Finding]:
    """The folder of data sets, and which of them are there."""
    folder = cache_folder()
    writable = _existing(folder).is_dir() and os.access(_existing(folder), os.W_OK)
    advice = "" if writable else "cannot be written to: set CIRCLE_DATA to a folder that can"
    yield Finding("data", "data folder", str(folder), "good" if writable else "note", advice)
    yield Finding("data", "free on its disk", shutil.disk_usage(_existing(folder)).free, unit="bytes")
    for name in registry.list_datasets():
        try:
            present, where = whereabouts(name)
        except CircleError as error:
            yield Finding("data", name, None, "note", str(error))
        else:
            yield Finding("data", name, where if present else None, advice="" if present else where)


def caches() -> Iterator[Finding]:
    """What may be deleted at any time; it is made anew when needed."""
    folder = cache_folder() / "features"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield Finding("caches", "features", size, advice=f"in {folder}" if size else "", unit="bytes")


def _distribution() -> metadata.Distribution | None:
    """What the installer noted about this package; None in a source tree that was never installed."""
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def _requirements(extra: str) -> list[Requirement]:
    """What the package asks for, always or (with a name) for an extra alone, on this system."""
    distribution = _distribution()
    given = [Requirement(line) for line in (distribution.requires if distribution else None) or []]
    always = [each for each in given if each.marker is None or each.marker.evaluate({"extra": ""})]
    if not extra:
        return always
    return [each for each in given if each not in always and each.marker and each.marker.evaluate({"extra": extra})]


def _version(requirement: Requirement) -> str | None:
    try:
        return metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return None


def _advice(requirement: Requirement, version: str | None, install: str) -> str:
    """Nothing where the version will do."""
    if version is None:
        return f"missing: {install}"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"expected {requirement.specifier}: {install}"
    return ""


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
