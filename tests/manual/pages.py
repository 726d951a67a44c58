"""The tables of a page, and how they differ from the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from manual.words import ROOT

DOCS = ROOT / "docs"
_HEADING = re.compile(r"^(#+) +(.*?) *$")
_ROW = re.compile(r"^\| *(`[^|]*`[^|]*?) *\|")


def rows(page: Path, section: str) -> list[str]:
    """Return the words in backticks in the first column of the tables below a heading.

    Raises:
        AssertionError: The page has no such heading.
    """
    found: list[str] = []
    inside = seen = False
    level = 0
    for line in page.read_text().splitlines():
        if heading := _HEADING.match(line):
            if heading[2] == section:
                inside = seen = True
                level = len(heading[1])
            elif inside and len(heading[1]) <= level:
                inside = False
        elif inside and (row := _ROW.match(line)):
            found += re.findall(r"`([^`]+)`", row[1])
    assert seen, f"{_shown(page)}: no section {section!r}"
    return found


def differences(page: Path, section: str, words: Mapping[str, str]) -> list[str]:
    """Return the names that a table lacks, lists although the code has none, or lists twice."""
    listed = rows(page, section)
    where = f"{_shown(page)}, section {section!r}"
    missing = [
        f"{where}: no row for `{word}` ({at})"
        for word, at in sorted(words.items())
        if word not in listed
    ]
    extra = [
        f"{where}: row `{word}`: the code has no such word" for word in listed_only(listed, words)
    ]
    twice = [
        f"{where}: two rows `{word}`" for word in sorted({w for w in listed if listed.count(w) > 1})
    ]
    return [*missing, *extra, *twice]


def listed_only(listed: Iterable[str], words: Mapping[str, str]) -> list[str]:
    """Return the listed names that the code does not have."""
    return sorted(set(listed) - set(words))


def _shown(page: Path) -> str:
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
