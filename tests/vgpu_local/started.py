"""A base class that makes a context manager of `start` and `stop`.

`stop` is called however the block is left, and also if `start` fails halfway, because threads and
processes that outlive their test make other tests fail in puzzling ways.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """A context manager that runs something inside its block."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it can be used."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all that was started, even if that is only a part or nothing."""

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
