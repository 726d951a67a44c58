"""Subjects of commits are `area: imperative` with at most 72 characters, as in CONTRIBUTING.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUBJECT = re.compile(r"(?=.{1,72}$)[a-z][\w, /.-]*: \S.*[^.\s]")


def subjects(count: int) -> list[str]:
    """Return the subjects of the newest commits, none if the tree has no history."""
    done = subprocess.run(
        ["git", "log", "--no-merges", "--format=%s", f"--max-count={count}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


def test_the_newest_commits_have_short_subjects_that_begin_with_an_area() -> None:
    assert [each for each in subjects(20) if not SUBJECT.fullmatch(each)] == []


@pytest.mark.parametrize(
    ("subject", "is_right"),
    [
        ("engine: add the preempt verb", True),
        ("agent, docs: say what a slot is", True),
        ("x", False),
        ("add the preempt verb", False),
        ("engine: add the preempt verb.", False),
        ("Engine: add the preempt verb", False),
        (f"engine: {'a' * 65}", False),
    ],
)
def test_a_wrong_subject_is_found(subject: str, *, is_right: bool) -> None:
    assert bool(SUBJECT.fullmatch(subject)) is is_right
