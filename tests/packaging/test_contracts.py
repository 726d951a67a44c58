"""The check of the import contracts fails if a planted import passes or a contract has no plant."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.tools


@pytest.fixture
def check() -> ModuleType:
    """Return the check on a copy of the packages, because tests change them."""
    path = Path(__file__).parent / "plant_imports.py"
    spec = importlib.util.spec_from_file_location("plant_imports", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["plant_imports"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_planted_import_that_passes_is_named(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = "operator/vgpu_operator/placement/fit_node.py"
    harmless = check.imported("decisions", file, "heapq")
    forbidden = check.imported("decisions", file, "random")
    monkeypatch.setattr(check, "contracts", lambda: {"decisions"})
    monkeypatch.setattr(check, "PLANTS", (harmless, forbidden))
    assert check.main() == 1
    said = capsys.readouterr().out
    assert f"'import heapq  # planted' in {file} passes" in said
    assert "'import random  # planted'" not in said


def test_a_contract_for_which_nothing_is_planted_is_named(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "contracts", lambda: {"new"})
    monkeypatch.setattr(check, "PLANTS", ())
    assert check.main() == 1
    assert "no import is planted for the contract 'new'" in capsys.readouterr().out
