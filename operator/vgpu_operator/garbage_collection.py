"""Keep Python's garbage collector from scanning all objects of a large cluster again and again.

Listed objects and decisions are long-lived, and hardly any of them are part of a cycle. A full pass
over the objects of 5,000 nodes takes a second or more, and a pass over what a busy hour has added
takes 100 ms. During a pass the operator neither serves Filter calls nor renews its Lease. So
objects that survive a pass are frozen, and each pass scans only objects created since the previous
one. A pass starts when Python has counted 300 more new objects than deleted ones. Where deletions
keep up with creations, as with a thousand watch events a second, that is after about 2,000 objects,
and the pass takes 0.5 ms. The cost is that a cycle that becomes garbage after surviving a pass is
never freed. The operator's steady work makes no such cycles (docs/design/loop-and-cost.md).
"""

from __future__ import annotations

import gc
from typing import Any

_NEW_OBJECTS = 300
"""New objects that start a pass."""


def set_aside() -> None:
    """Never look at the present objects again: what was imported and listed so far."""
    gc.freeze()
    # Python delays a full pass until new objects are a quarter of those that survived the last
    # one. This pass runs after the freeze, so nothing survives it and later ones need not wait.
    gc.collect()


def keep_passes_short() -> None:
    """Never look at the present objects again, and from now on only at new ones."""
    set_aside()
    gc.set_threshold(_NEW_OBJECTS)
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def _freeze(phase: str, _info: dict[str, Any]) -> None:
    if phase == "stop":
        gc.freeze()
