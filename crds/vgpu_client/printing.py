"""Text of other people, for a terminal or one line of a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line, of letters only that do nothing to a terminal: names come from other people."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
