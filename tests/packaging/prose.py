"""Refuses the words and constructions that tests/packaging/prose.toml lists.

In the manual, code (blocks, spans), links' targets and comments are left out. Of Python, the tests'
included, only docstrings and comments are read, of libvgpu's C only comments, without code spans.
Prints `file:line: found: write …`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = Path(__file__).parent / "prose.toml"
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
ROOMS = ("operator", "nodeagent", "crds", "tests")
NATIVE_FOLDERS = ("src", "include", "fake", "tools", "tests", "bench")


@dataclass(frozen=True, slots=True)
class Banned:
    """What must not be written, and what to write in its place; `manual_only`: code may have it."""

    pattern: re.Pattern[str]
    write: str
    manual_only: bool = False


def banned(rules: Path = RULES) -> list[Banned]:
    """The list, as patterns of whole words.

    Raises:
        re.error: A pattern is no regular expression.
    """
    return [
        Banned(
            re.compile(rf"(?<![\w-])(?:{entry['pattern']})(?![\w-])", re.IGNORECASE),
            entry["write"],
            entry.get("manual-only", False),
        )
        for entry in tomllib.loads(rules.read_text())["banned"]
    ]


def pages(root: Path = ROOT, rules: Path = RULES) -> list[Path]:
    """The pages that are written by hand."""
    document = tomllib.loads(rules.read_text())
    left_out = (*document["generated"], *document["records"])
    docs = root / "docs"
    found = [
        path
        for path in sorted(docs.rglob("*.md"))
        if not any(fnmatch(str(path.relative_to(docs)), pattern) for pattern in left_out)
    ]
    return [*found, *(root / name for name in ROOT_PAGES)]


def prose(text: str) -> list[str]:
    """The lines of a page with everything blank that is not prose."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    for pattern in (
        re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE),
        re.compile(r"<!--.*?-->", re.DOTALL),
        re.compile(r"``[^`]+``|`[^`]*`"),
        re.compile(r"(?<=\])\([^)]*\)"),
        re.compile(r"^(?: {4}|\t).*$", re.MULTILINE),
    ):
        text = pattern.sub(blank, text)
    return text.splitlines()


def modules(root: Path = ROOT) -> list[Path]:
    """All Python, without what protoc generates."""
    return [
        path
        for room in ROOMS
        for path in sorted((root / room).rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def native_sources(root: Path = ROOT) -> list[Path]:
    """The C of libvgpu, of its simulated driver, tools, tests and benches."""
    return [
        path
        for folder in NATIVE_FOLDERS
        for path in sorted((root / "libvgpu" / folder).glob("*.[ch]"))
    ]


def native_comments(source: str) -> list[str]:
    """The lines of a C source with everything blank that is no comment."""
    lines, end = [], 0
    for found in re.finditer(r"/\*.*?\*/", source, re.DOTALL):
        lines += [re.sub(r"[^\n]", " ", source[end : found.start()]), found[0]]
        end = found.end()
    return [re.sub(r"`[^`]*`", "", line) for line in "".join(lines).splitlines()]


def remarks(source: str) -> list[str]:
    """The lines of a module with everything blank that is no docstring or comment."""
    lines = source.splitlines()
    found = [""] * len(lines)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                    found[number] = lines[number]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found[token.start[0] - 1] = token.string
    code = re.compile(r"``[^`]+``|`[^`]*`|^ +\w+:")  # spans, and the names of arguments
    return [code.sub("", line) for line in found]


_READERS = {".py": remarks, ".c": native_comments, ".h": native_comments}


def faults(page: Path, rules: Sequence[Banned]) -> Iterator[tuple[int, str, str]]:
    """Line, what was found, and what to write in its place."""
    is_code = page.suffix in _READERS
    lines = _READERS.get(page.suffix, prose)(page.read_text())
    for number, line in enumerate(lines, 1):
        for rule in rules:
            for found in rule.pattern.finditer("" if is_code and rule.manual_only else line):
                yield number, found[0], rule.write


def main() -> int:
    """Print every fault; the exit status is 1 if there is one."""
    rules, count = banned(), 0
    for page in (*pages(), *modules(), *native_sources()):
        for number, found, write in faults(page, rules):
            print(f"{page.relative_to(ROOT)}:{number}: {found!r}: write {write}")
            count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
