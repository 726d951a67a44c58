"""What runs between `start` and `stop`, as a context manager.

However the block is left, and if starting itself fails halfway, it is stopped: threads and
processes that outlive a test are another test's riddle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """Inside `with`, it runs."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and return when it can be used."""

    @abstractmethod
    def stop(self) -> None:
        """End all that was started, be it half of it or nothing."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
