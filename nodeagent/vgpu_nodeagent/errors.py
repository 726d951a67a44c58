"""What can go wrong on a node, as one small tree.

`Refused` is not a fault: it is the answer "this container does not start", with its reason.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from vgpu_api.errors import VgpuError


class AgentError(VgpuError):
    """Whatever the agent raises on purpose."""


class DriverUnavailable(AgentError):
    """The vendor's driver is missing, failing, or does not answer in time."""


class LimitsUnsupported(AgentError):
    """What shall keep limits on this node cannot: the driver or the kernel lacks a part of it."""


class DriverFilesMissing(DriverUnavailable):
    """The driver's files, which containers need, are not installed where the agent looks."""


class PlaceTaken(AgentError):
    """An instance cannot be made where it should lie; the message has what is there."""


class InstanceLost(AgentError):
    """An instance that was made is not there any more, or not whole: as after a reboot."""


class InstanceInUse(AgentError):
    """An instance cannot be removed yet: something still runs on it."""


class KubeletUnavailable(AgentError):
    """The kubelet's socket or file cannot be reached, or has an unknown form."""


class CheckpointDamaged(AgentError):
    """The agent's own record on disk is cut, changed or of a format it does not know."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"checkpoint {path}: {what}")
        self.path = path


class PageDamaged(AgentError):
    """A limit page or usage region is not what the agent made: too short, or other contents."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class Why(StrEnum):
    """Why a container was refused; the reason of the event and of the claim's condition."""

    NOT_SYNCED = "AgentNotSynced"
    KUBELET_UNAVAILABLE = "KubeletUnavailable"
    UNKNOWN_SLOT = "UnknownSlot"
    UNKNOWN_ALLOCATION = "UnknownAllocation"
    NOT_HELD = "SlotNotHeld"
    RECORDS_DISAGREE = "RecordsDisagree"
    POD_UNKNOWN = "PodUnknown"
    POD_ENDED = "PodEnded"
    WRONG_POD = "WrongPod"
    NO_CLAIM = "ClaimNotFound"
    LATER_VERSION = "ClaimOfLaterVersion"
    REQUEST_MISMATCH = "RequestMismatch"
    UNKNOWN_DEVICE = "UnknownDevice"
    MIG_PLACE_MISSING = "MigPlaceMissing"
    MIG_PLACE_TAKEN = "MigPlaceTaken"
    DRIVER_UNAVAILABLE = "DriverUnavailable"
    LIMITS_UNSUPPORTED = "LimitsUnsupported"
    DRIVER_FILES_MISSING = "DriverFilesMissing"
    OVER_CAPACITY = "OverCapacity"
    SLOT_TAKEN = "SlotTaken"
    CLAIM_CLOSED = "ClaimClosed"
    INIT_ENDED = "InitContainersEnded"
    PAGE_DAMAGED = "LimitPageDamaged"
    STORAGE_FAILED = "StorageFailed"
    CALL_ENDED = "CallEnded"


class Refused(AgentError):
    """This container does not start now; `reason` and the message have why."""

    def __init__(self, reason: Why, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
