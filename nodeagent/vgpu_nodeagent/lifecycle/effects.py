"""Effects: the writes that follow from decisions about grants, as values; `effector` performs them.

A decision returns its effects in the order in which they must be on disk. A crash between two of
them may leave devices counted that nobody uses, but no page that grants more than is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from vgpu_api.init_part import InitRound
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_nodeagent.enforcement.grants import ContainerGrant
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.events import RoomMade
from vgpu_nodeagent.state.slots import SlotState


@dataclass(frozen=True, slots=True)
class Commit:
    """Write the slot state to disk."""

    state: SlotState


@dataclass(frozen=True, slots=True)
class OpenPage:
    """Fill the page of a slot allocation, then write its CDI spec."""

    slot_allocation: str
    grant: ContainerGrant


@dataclass(frozen=True, slots=True)
class ResizePage:
    """Change the limits of an open page."""

    slot_allocation: str
    limits: Sequence[DeviceLimit]


@dataclass(frozen=True, slots=True)
class ShutPage:
    """Close a page and remove its CDI spec, but keep its files: it may be opened again."""

    slot_allocation: str


@dataclass(frozen=True, slots=True)
class ClosePage:
    """Close a page for good, and remove its files."""

    slot_allocation: str


@dataclass(frozen=True, slots=True)
class ReportReleased:
    """Report that nothing of a claim's allocation is in use any more."""

    claim: VGPUClaim
    allocation_id: str


@dataclass(frozen=True, slots=True)
class ReportInitEnded:
    """Report that nothing of the init containers of a round is in use any more."""

    claim: VGPUClaim
    round: InitRound


@dataclass(frozen=True, slots=True)
class ReportInitWanted:
    """Report that the init containers must run again after a round."""

    claim: VGPUClaim
    round: InitRound


_Page: TypeAlias = OpenPage | ResizePage | ShutPage | ClosePage
_Report: TypeAlias = ReportReleased | ReportInitEnded | ReportInitWanted
Effect: TypeAlias = Commit | _Page | _Report | RoomMade
