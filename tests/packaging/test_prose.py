"""The check of the manual's prose finds what is banned, and leaves code alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.tools


def loaded() -> ModuleType:
    """The script beside this file; its folder has the name of a library."""
    spec = importlib.util.spec_from_file_location("prose", Path(__file__).parent / "prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["prose"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prose = loaded()


def found_in(text: str, folder: Path) -> list[tuple[int, str]]:
    page = folder / "page.md"
    page.write_text(text)
    return [(number, found) for number, found, _ in prose.faults(page, prose.banned())]


def test_banned_words_are_found_with_their_lines(tmp_path: Path) -> None:
    text = "A card is free.\n\nNobody is told of it.\n"
    assert found_in(text, tmp_path) == [(1, "card"), (3, "Nobody"), (3, "told")]


@pytest.mark.parametrize(
    "text",
    [
        "`card uuid=GPU-0`",
        "An empty default `` and `status.cards`.",
        "```text\nnobody knows\n```",
        "[the limits](limits.md#cards)",
        "<!-- a card -->",
        "    one card\n",
        "A discard pile of cardboard.",
        "CardInsufficientMemory",
    ],
)
def test_code_targets_comments_and_parts_of_words_are_left_alone(text: str, tmp_path: Path) -> None:
    assert found_in(text, tmp_path) == []


def test_of_code_docstrings_and_comments_are_checked(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Nobody reads `somebody`.\n\n    It is told.\n"""\n'
        'nobody = "nobody"  # in vain, on a very old card\n'
    )
    found = [(number, word) for number, word, _ in prose.faults(module, prose.banned())]
    assert found == [(1, "Nobody"), (3, "told"), (5, "in vain")]


def test_of_native_code_comments_are_checked(tmp_path: Path) -> None:
    source = tmp_path / "source.c"
    source.write_text(
        "/* Nobody reads `somebody`.\n * It is told. */\n"
        'int told; /* in vain */ char *nobody = "said";\n'
    )
    found = [(number, word) for number, word, _ in prose.faults(source, prose.banned())]
    assert found == [(1, "Nobody"), (2, "told"), (3, "in vain")]


def test_every_rule_says_what_to_write_and_is_a_pattern_of_something() -> None:
    rules = prose.banned()
    assert len(rules) > 10
    for rule in rules:
        assert rule.write
        assert not rule.pattern.search("")


def test_the_manual_and_the_pages_beside_the_readme_are_checked() -> None:
    names = {page.name for page in prose.pages()}
    assert names >= {"concepts.md", "reasons.md", "SECURITY.md", "troubleshooting.md"}
    assert not names & {"configuration.md", "0001-one-claim-status-as-the-only-truth.md"}


def test_the_modules_of_the_product_and_of_its_tests_are_checked() -> None:
    names = {path.name for path in prose.modules()}
    assert names >= {"planning.py", "agent.py", "vgpuclaim.py", "test_prose.py", "campaign.py"}
    assert not any(name.endswith("_pb2.py") for name in names)


def test_the_native_sources_are_checked() -> None:
    names = {path.name for path in prose.native_sources()}
    assert names >= {"throttle.c", "vgpu_abi.h", "engine.c", "spin.c"}


def test_neither_manual_nor_code_has_what_is_banned(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main() == 0, capsys.readouterr().out
