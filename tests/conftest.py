"""Settings for all tests, and `--again` for tests that run programs in real time."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import grpc.aio
import pytest
from hypothesis import settings

import hypothesis_profiles  # noqa: F401 -- registers the profiles

MOST_AGAIN = 3
"""At most this many tests of a run may pass only on a rerun (docs/design/tests.md)."""
REAL_TIME = {"integration", "e2e"}
"""Folders of tests that start programs and wait for them; elsewhere such a test is marked."""
_HAS_FAILED = pytest.StashKey[bool]()

# Loaded before the plugin reads --hypothesis-profile, which takes precedence.
settings.load_profile("fast")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--again",
        action="store_true",
        help="run a test in real time once more when it fails, on a new cluster, and name it",
    )


def pytest_configure() -> None:
    # grpc.aio stops its poller when its last object is collected, in whatever test that happens,
    # and was seen to hang then. One object that stays until the process ends prevents that.
    grpc.aio.init_grpc_aio()


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    if not config.getoption("again"):
        return
    for item in items:
        if REAL_TIME & set(item.path.parts) or item.get_closest_marker("real_time"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_HAS_FAILED] = True
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the module's fixtures before a second try.

    A cluster that still has the objects of the first try would refuse the same names, and the
    second try would show nothing.
    """
    if not item.stash.get(_HAS_FAILED, False) or not isinstance(item, pytest.Function):
        return
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        if definitions[-1].scope == "module":
            definitions[-1].finish(item._request)  # and everything that was made with it


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    again = reporter.stats.get("rerun", []) if reporter else []
    if len(again) > MOST_AGAIN:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
