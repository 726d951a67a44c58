"""What property tests of placement share."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from vgpu_operator.placement import fit_node


@pytest.fixture(scope="module")
def in_turn() -> Iterator[None]:
    """Give requests their devices in turn and take no choice back, as HAMi and the plain scan do.

    `test_every_assignment` compares what is done beyond that with every assignment.
    """
    with mock.patch.object(fit_node, "_search", lambda *arguments: arguments[-1]):
        yield
