"""Keeps Python's garbage collector from scanning all objects of a large cluster again and again.

Listed objects and decisions live long, and hardly any of them is part of a reference cycle. A full
pass over the objects of 5,000 nodes takes a second or more, and a pass over the new objects of a
busy hour takes 100 ms. During a pass the operator neither answers Filter calls nor renews its
Lease. So objects that survive a pass are frozen, and each pass scans only objects created since the
previous one. A pass starts after 300 more creations than deletions of objects. Where deletions keep
up with creations, as with a thousand watch events a second, that happens after about 2,000 objects,
and the pass takes 0.5 ms. The cost: a cycle that becomes garbage after it has survived a pass is
never freed. The operator's steady work creates no such cycles (docs/design/loop-and-cost.md).
"""

from __future__ import annotations

import gc
from typing import Any

_NEW_OBJECTS = 300
"""The number of new objects that starts a pass."""


def set_aside() -> None:
    """Exclude all present objects from future passes: imported modules and listed objects."""
    gc.freeze()
    # Python delays a full pass until the new objects amount to a quarter of those that survived the
    # last one. This pass runs after the freeze, so nothing survives it and no later pass is
    # delayed.
    gc.collect()


def keep_passes_short() -> None:
    """Exclude all present objects from future passes, and freeze what survives a later pass."""
    set_aside()
    gc.set_threshold(_NEW_OBJECTS)
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def _freeze(phase: str, _info: dict[str, Any]) -> None:
    if phase == "stop":
        gc.freeze()
