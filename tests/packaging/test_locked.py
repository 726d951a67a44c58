"""An image installs the locked packages that the project needs, and none of its tools."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
LOCK = """
aiohttp==3.1 \\
    --hash=sha256:aa
    # via
    #   kopf
    #   vgpu (pyproject.toml)
attrs==2.0 \\
    --hash=sha256:bb
    # via aiohttp
kopf==1.0 \\
    --hash=sha256:cc
    # via vgpu (pyproject.toml)
pytest==9.0 \\
    --hash=sha256:dd
    # via
    #   pytest-xdist
    #   vgpu (pyproject.toml)
pyyaml==6.0 \\
    --hash=sha256:ee
    # via kopf
"""


@pytest.fixture(scope="module")
def locked() -> ModuleType:
    spec = importlib.util.spec_from_file_location("locked", HERE / "locked.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _names(entries: str) -> list[str]:
    return [line.partition("==")[0] for line in entries.splitlines() if "==" in line]


def test_a_package_is_selected_with_exactly_its_dependencies(locked: ModuleType) -> None:
    chosen = locked.closure(LOCK, ["kopf>=1,<2"])
    assert _names(chosen) == ["aiohttp", "attrs", "kopf", "pyyaml"]
    assert "sha256:ee" in chosen


def test_a_package_that_the_lock_does_not_have_is_an_error(locked: ModuleType) -> None:
    with pytest.raises(KeyError):
        locked.closure(LOCK, ["numpy"])


LOADED = """
import importlib, pkgutil, sys
sys.modules["orjson"] = None  # used where it is installed, and not needed
import vgpu_client.exec_plugin
import vgpu_operator.cli.__main__
import vgpu_operator.cli, vgpu_operator.insight
for package in (vgpu_operator.cli, vgpu_operator.insight):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(*sorted({name.split(".")[0] for name, module in sys.modules.items() if module}))
"""
"""Loads all that `kubectl vgpu` may load, and prints the names of the packages."""


def test_the_client_loads_what_is_listed_for_it_and_nothing_else(locked: ModuleType) -> None:
    project = tomllib.loads((locked.ROOT / "pyproject.toml").read_text())
    listed = set(map(locked.name_of, project["tool"]["vgpu"]["client"]))
    every = set(map(locked.name_of, project["project"]["dependencies"]))
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    known = packages_distributions()
    used = {locked.name_of(each) for name in done.stdout.split() for each in known.get(name, ())}
    assert used & every == listed
