"""Serves the requests of a claim one after the other, as HAMi does, without revising a choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from vgpu_operator.placement import fit_node


@contextmanager
def serving_in_turn() -> Iterator[None]:
    """Leave out the search for other devices; `test_every_assignment` tests that by itself."""
    with mock.patch.object(fit_node, "_search", lambda *arguments: arguments[-1]):
        yield
