"""An agent killed at any moment: afterwards all records agree. `make chaos-agent` is longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_kills import campaign


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
async def test_whenever_the_agent_is_killed_all_records_agree_afterwards(
    seed: int, tmp_path: Path
) -> None:
    result = await campaign(tmp_path, pods=12, kills=4, seed=seed)
    assert result.wrong == ()
    assert result.kills == 4
    assert result.started >= 12
