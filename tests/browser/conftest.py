"""A headless Chromium that opens the page, for fleets of three sizes.

These tests are not collected without VGPU_BROWSER, the folder that setup.sh fills (`make
web-check`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from web_fleet import ServedFleet, Size
from web_visit import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = os.environ.get("VGPU_BROWSER")
collect_ignore_glob = [] if FOLDER else ["test_*"]
if FOLDER:
    sys.path.append(str(Path(FOLDER) / "python"))
SIZES = {"small": Size(2, 12), "medium": Size(100, 600), "large": Size(5_000, 20_000)}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(**CHROMIUM)
        yield running
        running.close()


@pytest.fixture(scope="session", params=SIZES)
def fleet(request: pytest.FixtureRequest) -> Iterator[ServedFleet]:
    """Serve a fleet of each size; tests do not change it."""
    with ServedFleet(SIZES[request.param]) as served:
        yield served


@pytest.fixture
def small() -> Iterator[ServedFleet]:
    """Serve a small fleet that only one test uses."""
    with ServedFleet(SIZES["small"]) as served:
        yield served
