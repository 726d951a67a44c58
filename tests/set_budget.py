"""A write budget that a test sets."""

from __future__ import annotations


class Budget:
    """Returns these seconds one after the other, and then repeats the last one."""

    def __init__(self, *seconds: float) -> None:
        self._left = list(seconds)

    def remaining_s(self) -> float:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]
