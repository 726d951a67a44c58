"""An agent is killed at any moment, and afterwards all records agree.

`make chaos-agent` runs longer.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agent_kills import FULL_DISK, STRIKES, campaign, planned


def test_a_campaign_with_enough_kills_has_every_strike_that_can_be_made() -> None:
    for seed in range(20):
        strikes = planned(random.Random(seed), 30, with_full_disk=True)
        assert len(strikes) == 30
        assert set(strikes) == set(STRIKES)
        without = planned(random.Random(seed), 30, with_full_disk=False)
        assert set(without) == set(STRIKES) - {FULL_DISK}
        assert len(planned(random.Random(seed), 4, with_full_disk=True)) == 4


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
async def test_whenever_the_agent_is_killed_all_records_agree_afterwards(
    seed: int, tmp_path: Path
) -> None:
    result = await campaign(tmp_path, pods=12, kills=4, seed=seed)
    assert result.wrong == ()
    assert result.kills == 4
    assert result.started >= 12
