"""The garbage collector, kept from looking at all objects of a large cluster again and again.

What has been listed and decided stays for long, and hardly any of it is in cycles. A full pass over
the objects of 5,000 nodes takes a second and more, one over what a busy hour has added 100 ms, in
which neither Filter nor the Lease is answered. So what has survived a full pass is not looked at
again, and a full pass comes once there are 2,700 more: it takes one or two milliseconds. What dies
meanwhile counts against them, so in a cluster where as much goes as comes a pass looks at several
times as many (after 6,300 it was 20,000, and 20 ms). The price is that a cycle which dies after it
has survived a pass stays in memory.
"""

from __future__ import annotations

import gc
from typing import Any

_THRESHOLDS = (300, 2, 2)
"""New objects for a pass over the newest; such passes for one over the next; those for a full one.
"""


def set_aside() -> None:
    """Look at nothing that is there by now again: what was imported, and what was listed."""
    gc.freeze()
    # Python puts a full pass off until a quarter of what the last one left is new: of nothing, now,
    # where it would be of all that is there.
    gc.collect()


def keep_passes_short() -> None:
    """Look at nothing that is there by now again, and from now on only at what is new."""
    set_aside()
    gc.set_threshold(*_THRESHOLDS)
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def _freeze(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
