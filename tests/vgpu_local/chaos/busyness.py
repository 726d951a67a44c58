"""Measures the factor by which a campaign must be slower on a busy machine.

There no replica could keep a Lease of 3 s, and nothing would run, so all times are stretched.
"""

from __future__ import annotations

import os
import time

_BUSY = 2.0
_WAITING_FOR_EACH_CORE = 4.0
_SLOWEST = 3.0
_SAMPLE_S = 0.3


def slowed_down_by() -> float:
    """Return the factor: 1 on a quiet machine, at most 3."""
    now = _busyness() / _BUSY
    lately = os.getloadavg()[0] / (os.cpu_count() or 1) / _WAITING_FOR_EACH_CORE
    return min(max(1.0, now, lately), _SLOWEST)


def _busyness() -> float:
    """Return the ratio of elapsed time to processor time for a piece of work."""
    began, worked = time.monotonic(), time.process_time()
    while time.process_time() - worked < _SAMPLE_S:
        pass
    return (time.monotonic() - began) / _SAMPLE_S
