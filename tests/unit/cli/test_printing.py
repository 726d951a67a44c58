"""Tables for users have the same words everywhere, and nothing in them controls the terminal."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from vgpu_client.printing import printable
from vgpu_operator.cli.printing import Portion, Printer, Table, aligned, counted
from vgpu_operator.insight.ages import age, lasting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_as_wide_as_their_widest_cell_and_nothing_is_behind_the_last():
    assert aligned([["NAME", "AGE"], ["a-long-one", "1s"]]) == [
        "NAME         AGE",
        "a-long-one   1s",
    ]


def test_an_empty_cell_is_a_dash_so_that_columns_can_be_counted():
    table = Table(["NAME", "NODE", "MEMORY"], [["a", "", Portion("1Mi/2Mi", 0.5)]])
    assert [line.split() for line in table.lines()] == [
        ["NAME", "NODE", "MEMORY"],
        ["a", "-", "1Mi/2Mi"],
    ]


def test_what_other_people_named_does_nothing_to_a_terminal():
    assert printable("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb c\\u202ed"


def test_a_pipe_gets_no_code_and_no_bar():
    out = io.StringIO()
    Printer(out).table(Table(["NAME", "USED"], [["a", Portion("5/10", 0.5)]]))
    assert out.getvalue() == "NAME   USED\na      5/10\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    Printer(out).table(Table(["NAME", "USED"], [["a", Portion("5/10", 0.5)]]))
    assert "\x1b[32m█████░░░░░ 5/10\x1b[0m" in out.getvalue()


def test_a_terminal_without_colours_gets_a_bar_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    Printer(out).table(Table(["NAME", "USED"], [["a", Portion("5/10", 0.5)]]))
    assert out.getvalue() == "NAME   USED\na      █████░░░░░ 5/10\n"


def test_a_dumb_terminal_is_a_pipe(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    Printer(out).table(Table(["NAME"], [["a"]]))
    assert out.getvalue() == "NAME\na\n"


def test_progress_is_a_line_for_each_change():
    out = io.StringIO()
    progress = counted(Printer(out), "claims")
    for gone in (0, 0, 1, 1, 2):
        progress(gone, 2)
    assert out.getvalue().splitlines() == [
        "0 of 2 claims are gone", "1 of 2 claims are gone", "2 of 2 claims are gone"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (119, "119s"),
        (120, "2m"),
        (270, "4m30s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600 + 600, "3h10m"),
        (8 * 3600 + 1800, "8h"),
        (49 * 3600, "2d"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: int, text: str):
    assert lasting(seconds) == text


def test_an_age_is_counted_from_the_creation():
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert age({"creationTimestamp": "2026-01-01T00:00:00Z"}, now) == "60s"
    assert age({}, now) == ""
