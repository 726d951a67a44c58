"""An engine on an API server in memory, with clocks that tests set."""

from __future__ import annotations

import pytest

from replica import Replica


@pytest.fixture
async def replica() -> Replica:
    return Replica()
