"""docs/limits-evidence.md names evidence for each promise, and all of the evidence exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "limits-evidence.md").read_text()
NAMED = re.findall(r"`([^`]+)`", TEXT)
SERIES = {name for name in NAMED if re.fullmatch(r"vgpu_claim_\w+", name)}
"""The agent's metrics; the tests of its exposition know them."""


def sources(*patterns: str) -> list[Path]:
    return [path for pattern in patterns for path in ROOT.glob(pattern)]


def test_every_file_of_tests_that_it_names_exists_once_or_is_named_with_its_folder() -> None:
    named = {name for name in NAMED if re.fullmatch(r"[\w/]*test_\w+\.(c|py)", name)}
    assert len(named) > 20
    for name in named:
        found = (
            sources(name) if "/" in name else sources(f"libvgpu/tests/{name}", f"tests/**/{name}")
        )
        assert found, name


def test_every_test_that_it_names_exists() -> None:
    written = "".join(path.read_text() for path in sources("libvgpu/tests/test_*.c"))
    named = {name for name in NAMED if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+){4,}", name)} - SERIES
    assert len(named) > 5
    for name in named:
        assert f"TEST({name})" in written, name


def test_every_figure_that_it_names_is_printed_by_a_bench() -> None:
    benches = "".join(
        path.read_text() for path in sources("libvgpu/tests/bench_*.c", "libvgpu/bench/*.c")
    )
    figures = re.findall(r"`(\w+_(?:ns|ms|bytes)|limiter)(?:\.[^`]*)?`", TEXT)
    assert len(set(figures)) > 6
    for figure in set(figures) - SERIES:
        assert f'\\"{figure}\\"' in benches, figure


def test_every_design_page_that_it_leads_to_exists() -> None:
    links = re.findall(r"\((design/[^)#]+)", TEXT)
    assert links
    for link in links:
        assert (ROOT / "docs" / link).exists(), link
