"""The product's identifiers are the field's words, and each name of a class means one class."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = tomllib.loads((Path(__file__).parent / "vocabulary.toml").read_text())
WORDS: dict[str, str] = RULES["words"]
KEPT: dict[str, list[str]] = RULES["kept"]
ROOMS = ("operator", "nodeagent", "crds")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def sources() -> list[Path]:
    """The product's Python, without what protoc generates."""
    return [
        path
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def defined(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name, node.lineno
            case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


def words_of(name: str) -> set[str]:
    """`holding_of_ruin` and `HoldingOfRuin` have the words holding, of and ruin."""
    return {part.lower() for part in _PART.findall(name)}


def private_words(path: Path, tree: ast.AST) -> Iterator[str]:
    """What is wrong with the names of a module: line, name and the field's word."""
    names = [*defined(tree), *((part, 1) for part in path.with_suffix("").parts[-2:])]
    refused = WORDS.keys() - set(KEPT.get(str(path), ()))
    for name, line in names:
        for word in sorted(words_of(name) & refused):
            yield f"{path.name}:{line}: {name}: instead of {word} write {WORDS[word]}"


def test_no_identifier_of_the_product_has_a_private_word() -> None:
    found = [
        text
        for path in sources()
        for text in private_words(path.relative_to(ROOT), ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize("file", sorted(KEPT))
def test_a_module_has_the_words_that_it_may_keep(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    used = {word for name, _ in defined(tree) for word in words_of(name)}
    assert set(KEPT[file]) <= used & WORDS.keys()


def test_no_two_classes_of_the_product_share_a_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert len(homes) > 300
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize(
    "code",
    [
        "class Tending: ...",
        "def holding_of_ruin(): ...",
        "async def poke(): ...",
        "def f(*, wish): ...",
        "SPOT = 1",
        "self._board = 1",
        "for moment in (): ...",
        "WishesOf: int = 1",
    ],
)
def test_a_private_word_is_found_in_each_kind_of_name(code: str) -> None:
    assert list(private_words(Path("room/module.py"), ast.parse(code)))


def test_a_private_word_is_found_in_the_name_of_a_module() -> None:
    assert list(private_words(Path("engine/tending.py"), ast.parse("")))


def test_a_word_inside_another_is_none() -> None:
    code = "extending = spacer = onboarding = hinterland = 1"
    assert not list(private_words(Path("room/module.py"), ast.parse(code)))
