"""Make text from other people safe for a terminal or a log line."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text as one line without control characters: names come from other people."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
