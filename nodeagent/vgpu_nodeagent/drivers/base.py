"""What the agent wants to know of a vendor's driver, whoever the vendor is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CardLink:
    """How a card reaches another one of its machine; a higher score is a better path."""

    peer: str
    type: str
    score: int


@dataclass(frozen=True, slots=True)
class Card:
    """One physical card as the driver describes it.

    Attributes:
        index: Its number on the machine.
        minor: The number of its device node.
        numa_node: None where the platform does not say.
        mig_enabled: It is in multi-instance mode.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    minor: int
    architecture: str = ""
    compute_capability: str = ""
    driver_version: str = ""
    runtime_version: str = ""
    pci_bus_id: str = ""
    numa_node: int | None = None
    mig_enabled: bool = False
    links: tuple[CardLink, ...] = ()


@dataclass(frozen=True, slots=True)
class CardUsage:
    """What is really in use on a card: MiB and percent."""

    memory_mib: int
    cores: int


class Severity(StrEnum):
    """What an event says about the card's health."""

    APPLICATION = "Application"
    """A program's own fault: the card is fine."""
    FATAL = "Fatal"
    """The card cannot be relied on."""


@dataclass(frozen=True, slots=True)
class CardEvent:
    """Something that the driver reported about a card; `uuid` is empty when it names none."""

    uuid: str
    severity: Severity
    reason: str
    message: str


class Driver(Protocol):
    """One vendor's cards. Every call may raise `DriverUnavailable`, and none hangs."""

    @property
    def vendor(self) -> str:
        """The vendor's name, as in a request's `vendor`."""

    async def cards(self) -> tuple[Card, ...]:
        """The cards of this machine, by index."""

    async def usage(self) -> Mapping[str, CardUsage]:
        """What is in use, by UUID; cards that do not tell are left out."""

    async def process_memory(self) -> Mapping[str, Mapping[int, int]]:
        """Bytes that each process holds, by UUID of the card and PID on the host."""

    async def computing(self) -> Mapping[str, frozenset[int]]:
        """Who was seen computing since this was last asked: host PIDs, by UUID of the card."""

    async def next_event(self) -> CardEvent:
        """Wait for the driver to report something."""

    def close(self) -> None:
        """Let go of the driver. Does not wait for a call that hangs."""
