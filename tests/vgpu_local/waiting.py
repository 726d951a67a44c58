"""Waits until an object meets a condition, and checks that all programs keep running."""

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
    """Wait until `holds` is true for the object of this name, and return the object.

    Args:
        objects: Returns all objects of the kind.
        name: The object's name.
        holds: The condition.
        check: Raises an error if a program has ended.
        limit: The longest wait in seconds.

    Raises:
        TimeoutError: The condition was not met; the text shows the last version.
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
