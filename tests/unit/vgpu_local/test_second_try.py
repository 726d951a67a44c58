"""A test in real time that fails with `--again` is tried once more, as if it had not run before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
MODULE = """
import pytest

STARTED = []

@pytest.fixture(scope="module")
def plane():
    STARTED.append(set())
    yield STARTED[-1]
    STARTED[-1].clear()

@pytest.fixture(scope="module")
def cluster(plane):
    yield plane
    assert plane is STARTED[-1]

@pytest.fixture(scope="session")
def session():
    return []

def test_before(cluster):
    cluster.add("kept")

def test_fails_once(cluster, session):
    assert "left" not in cluster
    cluster.add("left")
    session.append("tried")
    assert len(session) == 2

def test_after(cluster, session):
    assert cluster == {"left"}
    assert (len(STARTED), len(session)) == (2, 2)
"""
TEARDOWN = """
import pytest

STARTED = []

@pytest.fixture(scope="module")
def cluster():
    STARTED.append(set())
    return STARTED[-1]

@pytest.fixture
def emptied(cluster):
    yield cluster
    assert not cluster

def test_leaves_something(emptied):
    if len(STARTED) == 1:
        emptied.add("stuck")
"""


def run(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    tests = folder / "integration"
    tests.mkdir()
    (tests / "test_it.py").write_text(text)
    shutil.copy(CONFTEST, folder)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_second_try_finds_the_fixtures_of_its_module_new(tmp_path: Path, workers: str) -> None:
    done = run(tmp_path, MODULE, "--again", "-n", workers)
    assert "3 passed, 1 rerun" in done.stdout, done.stdout


def test_a_second_try_after_a_failed_cleanup_does_too(tmp_path: Path) -> None:
    done = run(tmp_path, TEARDOWN, "--again")
    assert done.returncode == 0, done.stdout
    assert "1 rerun" in done.stdout


def test_without_the_option_the_first_failure_counts(tmp_path: Path) -> None:
    done = run(tmp_path, MODULE)
    assert "test_fails_once" in done.stdout
    assert done.returncode == 1
