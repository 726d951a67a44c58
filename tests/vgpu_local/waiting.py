"""Waits for an object to be as wanted, while everything that makes it so still runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from vgpu_client.transport import Object

_LOOK_S = 0.05


def wait_for(
    objects: Callable[[], Sequence[Object]],
    name: str,
    holds: Callable[[Object], object],
    *,
    check: Callable[[], None],
    limit: float,
) -> Object:
    """Return the object of this name as soon as it is as wanted.

    Args:
        objects: looks at all of its kind.
        name: which of them.
        holds: whether it is as wanted.
        check: raises when what should run does not.
        limit: seconds.

    Raises:
        TimeoutError: it was not: after how long, and what was there instead.
    """
    deadline = time.monotonic() + limit
    seen = "there is no such object"
    while True:
        for found in objects():
            if found["metadata"]["name"] == name:
                if holds(found):
                    return found
                seen = f"its status is {found.get('status')}"
        check()
        if time.monotonic() >= deadline:
            raise TimeoutError(f"after {limit:g} s: {seen}")
        time.sleep(_LOOK_S)
