"""CITATION.cff and CHANGELOG.md say what the package says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What the Citation File Format 1.2.0 knows at the top; it allows nothing else.
KNOWN = {
    "abstract",
    "authors",
    "cff-version",
    "commit",
    "contact",
    "date-released",
    "doi",
    "identifiers",
    "keywords",
    "license",
    "license-url",
    "message",
    "preferred-citation",
    "references",
    "repository",
    "repository-artifact",
    "repository-code",
    "title",
    "type",
    "url",
    "version",
}


def named(author: dict[str, str]) -> bool:
    """A person has family and given names, an entity one name."""
    return bool(author.get("name")) != bool(author.get("family-names") and author.get("given-names"))


def test_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert set(citation) <= KNOWN
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["title"] == "CIRCLE" and citation["message"]
    assert citation["version"] == PROJECT["version"] and citation["license"] == PROJECT["license"]
    assert citation["keywords"] == PROJECT["keywords"]
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    assert all(named(author) for author in citation["authors"] + paper["authors"])


def test_changelog() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    releases = [line for line in lines if line.startswith("## ")]
    assert releases[0] == "## [Unreleased]"
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
