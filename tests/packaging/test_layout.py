"""The layout of the tree: files that must not exist, dependencies and targets."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = frozenset(
    ("help", "setup", "demo", "test", "e2e", "bench", "lint", "fmt", "crds", "ci", "clean")
)
PRODUCT = ("crds", "operator", "nodeagent")
COMPONENTS = (*PRODUCT, "tests")
DESIGN_PAGES = sorted(set((ROOT / "docs/design").glob("*.md")) - {ROOT / "docs/design/README.md"})


def test_the_standard_librarys_operator_is_not_shadowed() -> None:
    """Python is started in the root, where the folder `operator/` comes first on the path."""
    code = "import operator, collections; print(operator.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).parent == Path(subprocess.__file__).parent


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_folders_are_no_packages(component: str) -> None:
    assert not (ROOT / component / "__init__.py").exists()


@pytest.mark.parametrize("page", DESIGN_PAGES, ids=lambda page: page.name)
def test_a_design_page_is_short_and_says_what_was_rejected(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= 120
    assert lines.count("## Rejected") == 1


def test_every_dependency_is_locked_with_its_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    locked = set(
        re.findall(r"^([a-zA-Z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.M)
    )
    names = {re.split(r"[<>=~!\[]", text)[0].lower().replace("_", "-") for text in wanted}
    assert names <= {name.lower().replace("_", "-") for name in locked}


def test_product_code_imports_nothing_that_only_another_package_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {_distribution(re.split(r"[<>=~!;]", text)[0]) for text in project["dependencies"]}
    modules = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    imported = {name for path in modules for name in _imported(ast.parse(path.read_text()))}
    libraries = {
        name for name in imported - sys.stdlib_module_names if not name.startswith("vgpu_")
    }
    of = packages_distributions()
    brought = {name for name in libraries if declared.isdisjoint(map(_distribution, of[name]))}
    assert len(libraries) > 10
    assert brought == set()


def _distribution(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


def test_the_makefile_helps_with_each_of_its_targets() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert listed >= TARGETS
