"""Select the packages an image needs from requirements.lock, with hashes and without test tools.

    python3 tests/packaging/locked.py run | client | build

`run` selects what the project needs at run time, `client` what `kubectl vgpu` needs of that, and
`build` what is needed to build it. The lock notes
for each package which others require it ("via"); following these notes backwards yields all
dependencies.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def name_of(requirement: str) -> str:
    """Return the normal form of the package that a requirement names: `PyYAML>=6` is `pyyaml`."""
    word = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert word is not None, requirement
    return re.sub(r"[-_.]+", "-", word.group()).lower()


def closure(lock: str, wanted: Iterable[str]) -> str:
    """Return the lock's entries for the wanted packages and all their dependencies.

    Raises:
        KeyError: the lock has no entry for one of them.
    """
    blocks = {name_of(block): block for block in re.split(r"\n(?=[a-z0-9])", lock) if block.strip()}
    asked_by = {name: _asking(block) for name, block in blocks.items()}
    found = {name_of(requirement) for requirement in wanted}
    while more := {name for name, asking in asked_by.items() if asking & found} - found:
        found |= more
    return "\n".join(blocks[name] for name in sorted(found))


def _asking(block: str) -> set[str]:
    _, _, notes = block.partition("# via")
    return {name_of(word) for word in re.findall(r"[A-Za-z0-9._-]+", notes)}


def main() -> None:
    """Print the entries for `run`, `client` or `build`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {
        "run": project["project"]["dependencies"],
        "client": project["tool"]["vgpu"]["client"],
        "build": project["build-system"]["requires"],
    }[sys.argv[1]]
    print(closure((ROOT / "requirements.lock").read_text(), wanted))


if __name__ == "__main__":
    main()
