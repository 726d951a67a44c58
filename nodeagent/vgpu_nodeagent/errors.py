"""The agent's exceptions, as one small tree.

`Refused` is not a fault: it is the answer "this container does not start now", with its reason.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from vgpu_api.errors import VgpuError


class AgentError(VgpuError):
    """The base of all exceptions that the agent raises."""


class DriverUnavailable(AgentError):
    """The vendor's driver is missing, failing, or does not respond in time."""


class LimitsUnsupported(AgentError):
    """The configured limit backend cannot enforce limits with this driver or kernel."""


class DriverFilesMissing(DriverUnavailable):
    """The driver files that containers need are not installed where the agent looks."""


class PlaceTaken(AgentError):
    """A MIG instance cannot be created at its placement; the message names what occupies it."""


class InstanceLost(AgentError):
    """A MIG instance that was made is gone or incomplete, as after a reboot."""


class InstanceInUse(AgentError):
    """A MIG instance cannot be removed yet because something still runs on it."""


class KubeletUnavailable(AgentError):
    """The kubelet's socket or file cannot be read, or has an unknown format."""


class CheckpointDamaged(AgentError):
    """The agent's checkpoint is truncated, altered or of an unknown format."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"checkpoint {path}: {what}")
        self.path = path


class PageDamaged(AgentError):
    """A limit page or usage region is truncated, or has other contents than the agent wrote."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class Why(StrEnum):
    """The reason for a refused container, in the event and in the claim's condition."""

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
    RESOURCE_CLAIM_MISMATCH = "ResourceClaimMismatch"
    RESOURCE_CLAIM_SHARED = "ResourceClaimShared"
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
    NOT_SERVING = "AnotherAgentServes"
    STILL_IN_USE = "StillInUse"


class Refused(AgentError):
    """A container must not start now; `reason` and the message say why."""

    def __init__(self, reason: Why, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
