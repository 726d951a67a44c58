"""The reference lists exactly the names that the code can print."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manual import generate, words
from manual.pages import DOCS, differences, rows
from vgpu_api.reasons import CURES, Cure

REFERENCE = DOCS / "reference"
REASONS, CONDITIONS = REFERENCE / "reasons.md", REFERENCE / "conditions-and-events.md"
METRICS, NAMES = REFERENCE / "metrics.md", REFERENCE / "annotations-and-labels.md"
PORTS = REFERENCE / "ports-and-files.md"

TABLES: tuple[tuple[Path, str, Callable[[], words.Words]], ...] = (
    (REASONS, "Why nothing was allocated", words.reasons),
    (REASONS, "Why a container was not started", words.refusals),
    (REASONS, "Findings of the audit", words.findings),
    (CONDITIONS, "Reasons of conditions", words.condition_reasons),
    (CONDITIONS, "Events", words.event_reasons),
    (PORTS, "Ports", words.ports),
    (PORTS, "Files", words.files),
)


@pytest.mark.parametrize(("page", "section", "of_code"), TABLES)
def test_a_table_and_the_code_have_the_same_words(
    page: Path, section: str, of_code: Callable[[], words.Words]
) -> None:
    assert differences(page, section, of_code()) == []


def test_the_page_groups_reasons_by_their_cures_in_the_order_in_which_they_are_told() -> None:
    section = REASONS.read_text().split("What cures it", 1)[1].split("\n\n", 1)[0]
    groups = [set(re.findall(r"`(\w+)`", line)) for line in section.splitlines() if "`" in line]
    assert groups == [
        {reason.value for reason, of in CURES.items() if of is cure} for cure in sorted(Cure)
    ]


def test_every_type_of_condition_is_listed_once() -> None:
    of_claims = rows(CONDITIONS, "Conditions of a VGPUClaim")
    of_devices = rows(CONDITIONS, "Conditions of a GPUDevice")
    # `Ready` is a condition of two kinds.
    known = words.condition_types()
    assert {*of_claims, *of_devices} == set(known), known
    assert len({*of_claims}) == len(of_claims)
    assert len({*of_devices}) == len(of_devices)


def test_every_annotation_label_and_finalizer_is_listed() -> None:
    sections = ("Read by the project", "Written by the project", "Ignored without a warning")
    assert differences(NAMES, "Annotations and labels", words.kubernetes_names()) == []
    listed = [name for section in sections for name in rows(NAMES, section)]
    assert sorted(listed) == sorted(rows(NAMES, "Annotations and labels"))


def test_every_metric_is_listed_with_its_type_and_labels() -> None:
    found = words.metrics()
    assert differences(METRICS, "Metrics", dict.fromkeys(found, "see /metrics")) == []
    for line in METRICS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        series = found.get(cells[0].strip("`"))
        if series is not None:
            labels = tuple(label.strip("` ") for label in cells[2].split(",") if label)
            assert (cells[1], labels) == (series.kind, series.labels), cells[0]


def test_no_metric_is_made_where_the_reference_does_not_look() -> None:
    made = words.metric_names_in_source()
    listed = {name.removesuffix("_total") for name in words.metrics()}
    assert {name: at for name, at in made.items() if name not in listed} == {}
    assert listed <= set(made)


@pytest.mark.parametrize("page", sorted(generate.pages()), ids=lambda page: str(page.name))
def test_a_generated_page_is_fresh(page: Path) -> None:
    present, fresh = page.read_text().splitlines(), generate.pages()[page].splitlines()
    stale = list(difflib.unified_diff(present, fresh, "present", "fresh", n=0, lineterm=""))
    assert stale[:20] == [], "run `make reference` and commit"


def test_every_key_of_the_configuration_has_a_meaning() -> None:
    table = [
        line
        for line in generate.configuration().splitlines()
        if line.startswith("| `") and "." in line
    ]
    keys = generate.configuration_keys()
    empty = [key for key in keys for line in table if f"`{key}`" in line and line.endswith("|  |")]
    assert len(keys) > 20
    assert empty == []


def test_every_field_of_the_api_has_a_meaning() -> None:
    lines = [
        line for line in generate.api().splitlines() if line.startswith(("| `spec", "| `status"))
    ]
    assert len(lines) > 80
    assert [line for line in lines if line.endswith("|  |")] == []


def test_a_missing_row_is_named_with_its_page_and_the_place_in_the_code(tmp_path: Path) -> None:
    page = tmp_path / "reasons.md"
    page.write_text(
        "# R\n\n## A\n\n| Reason | |\n|---|---|\n| `One`, `Two` | |\n\n## B\n\n| `Other` | |\n"
    )
    told = differences(page, "A", {"One": "a.One", "Three": "a.py:3"})
    assert told == [
        "reasons.md, section 'A': no row for `Three` (a.py:3)",
        "reasons.md, section 'A': row `Two`: the code has no such word",
    ]


def test_a_row_that_is_there_twice_is_named(tmp_path: Path) -> None:
    page = tmp_path / "p.md"
    page.write_text("## A\n| `One` | |\n| `One` | |\n")
    assert differences(page, "A", {"One": ""}) == ["p.md, section 'A': two rows `One`"]


def test_a_page_without_the_section_is_named(tmp_path: Path) -> None:
    page = tmp_path / "p.md"
    page.write_text("## A\n")
    with pytest.raises(AssertionError, match=r"p\.md: no section 'B'"):
        rows(page, "B")


def without_help(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the arguments of a program and its commands that have no help text."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                yield from without_help(f"{name} {command}", below)
        elif not action.help:
            yield f"{name}: {'/'.join(action.option_strings) or action.dest}"


@pytest.mark.parametrize(
    "program", [*words.services(), *words.commands()], ids=lambda program: str(program.called)
)
def test_every_argument_has_a_help_text(program: words.Program) -> None:
    assert list(without_help(program.called, program.parser)) == []


def test_an_argument_without_a_help_text_is_found_in_a_command_too() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--explained", help="why")
    below = parser.add_subparsers(help="commands").add_parser("fly")
    below.add_argument("-h2", "--high")
    assert list(without_help("vgpu", parser)) == ["vgpu fly: -h2/--high"]
