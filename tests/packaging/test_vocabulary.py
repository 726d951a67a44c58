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
NATIVE_WORDS: dict[str, dict[str, str]] = {
    folder: {
        word: instead
        for word, instead in (WORDS | entry["words"]).items()
        if word not in entry.get("kept", {})
    }
    for folder, entry in RULES["native"].items()
}
"""By folder of libvgpu: the words that its C identifiers do not have, and the field's."""
ROOMS = ("operator", "nodeagent", "crds")
_NO_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
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
    assert found - WORDS.keys() - NATIVE_WORDS["src"].keys() == set()


def native_identifiers(source: str) -> Iterator[tuple[str, int]]:
    """Every identifier of a C source with its line, but for those of NVIDIA's own interfaces."""
    code = _NO_CODE.sub(lambda found: "\n" * found[0].count("\n"), source)
    for number, line in enumerate(code.splitlines(), 1):
        for name in re.findall(r"[A-Za-z_]\w*", line):
            if not re.match(r"(?:nvml|cu)[A-Z]", name):
                yield name, number


def private_native_words(path: Path, words: dict[str, str]) -> Iterator[str]:
    """What is wrong with the names of a C source: line, name and the field's word."""
    for name, line in [(path.stem, 1), *native_identifiers(path.read_text())]:
        for word in sorted(words_of(name) & words.keys()):
            yield f"{path.name}:{line}: {name}: instead of {word} write {words[word]}"


@pytest.mark.parametrize("folder", NATIVE_WORDS)
def test_no_native_identifier_has_a_private_word(folder: str) -> None:
    paths = sorted((ROOT / "libvgpu" / folder).glob("*.[ch]"))
    assert len(paths) > 2
    found = [text for path in paths for text in private_native_words(path, NATIVE_WORDS[folder])]
    assert found == []


@pytest.mark.parametrize(
    ("folder", "word"),
    [(folder, word) for folder, entry in RULES["native"].items() for word in entry.get("kept", {})],
)
def test_a_native_folder_has_the_words_that_it_may_keep(folder: str, word: str) -> None:
    paths = (ROOT / "libvgpu" / folder).glob("*.[ch]")
    names = {name for path in paths for name, _ in native_identifiers(path.read_text())}
    assert word in WORDS
    assert word in {each for name in names for each in words_of(name)}


def test_a_private_word_is_found_in_native_names_and_not_beside_them(tmp_path: Path) -> None:
    source = tmp_path / "source.c"
    source.write_text(
        '/* a\n * wish */\nint wish_of; // wish\nchar *s = "wish";\nnvmlDeviceGetBoardId(0);\n'
    )
    assert list(private_native_words(source, NATIVE_WORDS["src"])) == [
        "source.c:3: wish_of: instead of wish write spec"
    ]


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
