"""Fixtures of property tests that compare placement with models of HAMi."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving_in_turn import serving_in_turn


@pytest.fixture(scope="module")
def in_turn() -> Iterator[None]:
    """Serve requests in turn throughout a module."""
    with serving_in_turn():
        yield
