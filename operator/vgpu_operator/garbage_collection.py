"""The garbage collector, kept from looking at all objects of a large cluster again and again.

What has been listed and decided stays for long, and hardly any of it is in cycles. A full pass over
the objects of 5,000 nodes takes a second and more, one over what a busy hour has added 100 ms, in
which neither Filter nor the Lease is answered. So what has survived a pass is not looked at again,
and a pass is over what is new since the last one. Python counts 300 objects more than died
meanwhile; where as much goes as comes, as with a thousand watch events a second, that are about
2,000, and take 0.5 ms. The price is that a cycle which dies after it has survived a pass stays in
memory. There are none of these in what an operator does all the time
(docs/design/loop-and-cost.md).
"""

from __future__ import annotations

import gc
from typing import Any

_NEW_OBJECTS = 300
"""For a pass."""


def set_aside() -> None:
    """Look at nothing that is there by now again: what was imported, and what was listed."""
    gc.freeze()
    # Python puts a full pass off until a quarter of what the last one left is new: of nothing, now,
    # where it would be of all that is there.
    gc.collect()


def keep_passes_short() -> None:
    """Look at nothing that is there by now again, and from now on only at what is new."""
    set_aside()
    gc.set_threshold(_NEW_OBJECTS)
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def _freeze(phase: str, _info: dict[str, Any]) -> None:
    if phase == "stop":
        gc.freeze()
