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
KEPT = {
    (module, word): entry["because"]
    for entry in RULES["kept"]
    for module in entry["modules"]
    for word in entry["words"]
}
"""By module and word: why the module may have it nevertheless."""
ELSEWHERE = {word for entry in RULES["elsewhere"] for word in entry["words"]}
"""Words of the column "Not" that are refused in one room's prose and not as a part of a name."""
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
    refused = {word for word in WORDS if (str(path), word) not in KEPT}
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


@pytest.mark.parametrize(("module", "word"), sorted(KEPT))
def test_a_module_has_the_words_that_it_may_keep(module: str, word: str) -> None:
    tree = ast.parse((ROOT / module).read_text())
    assert word in WORDS
    assert word in {each for name, _ in defined(tree) for each in words_of(name)}


def words_of_the_page() -> set[str]:
    """What the column "Not" of the terms in docs/development.md has in code spans."""
    page = (ROOT / "docs" / "development.md").read_text()
    rows = page.partition("| Word | For | Not |")[2].partition("\n\n")[0].splitlines()
    return {word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[-2:][0])}


def test_every_word_that_the_page_refuses_is_refused_here() -> None:
    found = words_of_the_page()
    assert found >= {"ask", "lease", "card"}
    assert found - WORDS.keys() - ELSEWHERE == set()


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
