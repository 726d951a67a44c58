"""How much slower a campaign must go on a machine that others keep busy.

No replica could keep a lease of 3 s there, so nothing would run: all is stretched in time instead.
"""

from __future__ import annotations

import os
import time

_BUSY = 2.0
_WAITING_FOR_EACH_CORE = 4.0
_SLOWEST = 3.0
_SAMPLE_S = 0.3


def slowed_down_by() -> float:
    """The factor: 1 on a quiet machine, 3 at most."""
    now = _busyness() / _BUSY
    lately = os.getloadavg()[0] / (os.cpu_count() or 1) / _WAITING_FOR_EACH_CORE
    return min(max(1.0, now, lately), _SLOWEST)


def _busyness() -> float:
    """How much longer this process takes for a piece of work than it works on it."""
    began, worked = time.monotonic(), time.process_time()
    while time.process_time() - worked < _SAMPLE_S:
        pass
    return (time.monotonic() - began) / _SAMPLE_S
