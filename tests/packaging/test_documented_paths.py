"""Files that documents name in backticks exist; `test_manual.py` checks links."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.splitlines()
DOCUMENTS = [name for name in FILES if name.endswith(".md") and (ROOT / name).exists()]
SUFFIXES = (".py", ".c", ".h", ".sh", ".yaml", ".toml")
FORBIDDEN = {"operator/__init__.py"}
"""Paths that a document names because they must not exist."""
PLACEHOLDER = re.compile(r"[A-Z]+/")
"""Folders that are passed to a program when it starts."""
COMPONENTS = ("crds", "operator", "nodeagent")


def there(name: str) -> bool:
    """Return True if the file exists below the root or any folder; `*` stands for any text."""
    pattern = re.compile(r"(?:.*/)?" + re.escape(name).replace(r"\*", "[^/]*"))
    return any(pattern.fullmatch(file) and (ROOT / file).exists() for file in FILES)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    quoted = re.findall(r"`([\w./*-]+/[\w./*-]+)`", (ROOT / document).read_text())
    named = {name for name in quoted if name.endswith(SUFFIXES) and not PLACEHOLDER.match(name)}
    missing = [name for name in named - FORBIDDEN if not there(name)]
    assert missing == []


def test_what_mutation_testing_changes_and_runs_is_there() -> None:
    rooms = tomllib.loads((ROOT / "tests" / "mutation" / "rooms.toml").read_text())
    missing = [
        path
        for room in rooms.values()
        for path in room["mutate"]
        if not any(any((ROOT / component).glob(path)) for component in COMPONENTS)
    ]
    missing += [
        path for room in rooms.values() for path in room["tests"] if not (ROOT / path).exists()
    ]
    assert missing == []


@pytest.mark.parametrize(
    "component", sorted(path.name for path in (ROOT / "manifests" / "components").iterdir())
)
def test_the_page_about_installing_has_a_row_for_each_component(component: str) -> None:
    rows = [line for line in (ROOT / "docs" / "install.md").read_text().splitlines() if "|" in line]
    assert any(f"`manifests/components/{component}`" in row for row in rows)
