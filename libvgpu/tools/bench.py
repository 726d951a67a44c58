"""Runs the benches of the library and writes what they say, with the ratios to a direct call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def measured(program: Path) -> dict[str, Any]:
    """What one bench program prints.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    done = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def with_ratios(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures, and beside each that has a direct call how many times as long it takes."""
    ratios = {
        f"{name}.{kind}": round(value / group["direct"], 2)
        for name, group in figures.items()
        if isinstance(group, dict) and group.get("direct")
        for kind, value in group.items()
        if kind != "direct"
    }
    return {**figures, "ratios": ratios}


def main() -> int:
    """Run every bench named on the command line; the first word is the file to write."""
    out, *programs = map(Path, sys.argv[1:])
    figures: dict[str, Any] = {}
    for program in programs:
        figures |= measured(program)
    text = json.dumps(with_ratios(figures), indent=1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
