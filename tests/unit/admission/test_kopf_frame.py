from __future__ import annotations

from collections.abc import Iterable, Sized
from itertools import islice

import kopf

from vgpu_operator.kopf_frame import set_up


def test_no_outage_of_the_api_server_is_long_enough_to_end_a_process() -> None:
    settings = kopf.OperatorSettings()
    set_up(settings)
    backoffs = settings.networking.error_backoffs
    assert isinstance(backoffs, Iterable)
    assert not isinstance(backoffs, Sized)  # kopf would count tries up to its length
    for _ in range(2):  # each request starts afresh
        waits = list(islice(backoffs, 1_000))
        assert len(waits) == 1_000
        assert waits[0] == 1
        assert max(waits) == 8
