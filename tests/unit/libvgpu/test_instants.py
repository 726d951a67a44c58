"""Points in time and durations of libvgpu cannot replace each other: the compiler refuses it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[3] / "libvgpu"
PROGRAM = """
#include "bucket.h"

int check(struct vgpu_instant now, struct vgpu_instant then, vgpu_duration pause)
{{
    (void)now, (void)then, (void)pause;
    return {expression};
}}
"""


def compiles(expression: str) -> bool:
    """Return True if the compiler accepts an expression of `now`, `then` and `pause`."""
    command = ["gcc", "-std=c11", "-Werror", "-fsyntax-only", "-x", "c", "-"]
    folders = [f"-I{SOURCES / name}" for name in ("include", "src")]
    done = subprocess.run(
        [*command, *folders],
        input=PROGRAM.format(expression=expression),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0


@pytest.mark.parametrize(
    "expression",
    [
        "vgpu_is_before(then, now)",
        "vgpu_between(then, now) > pause",
        "vgpu_bucket_has_company(0, vgpu_later(now, pause))",
    ],
)
def test_points_in_time_and_durations_meet_in_functions(expression: str) -> None:
    assert compiles(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "now < then",
        "now - then > pause",
        "now + pause > 0",
        "now == pause",
        "vgpu_is_before(pause, now)",
        "vgpu_between(then, pause) > 0",
        "vgpu_later(pause, now).ns > 0",
        "vgpu_between(then, now).ns > 0",
        "vgpu_bucket_has_company(0, pause)",
    ],
)
def test_the_compiler_refuses_to_mix_them(expression: str) -> None:
    assert not compiles(expression)
