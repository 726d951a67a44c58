"""Beside which pods a device may serve another, where a vendor's table has rules for that.

What a request is to its neighbours is a *mark*: its class and the policy that it needs, one bit
each. What is on a device is the marks of all that it serves and how many slots of it each class
has. It follows from claims alone, so a restart finds it, and what a node registers of a device's
policy is not needed: a device that serves none takes any. Source: HAMi v2.10.0, MetaX sGPU.

Both lie above the bits of a device's MIG slices, with which they share a column:
docs/design/vendors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_api.v1alpha1.vgpuclaim import QosPolicy
from vgpu_api.vendors import kind_of

MARKED_FROM = 1 << 128
"""The lowest bit: what is less is slices or numbered cores."""
ONLINE = MARKED_FROM
OFFLINE = MARKED_FROM << 1
_NEITHER = MARKED_FROM << 2
_POLICY: Mapping[QosPolicy, int] = MappingProxyType(
    {
        "BestEffort": MARKED_FROM << 3,
        "FixedShare": MARKED_FROM << 4,
        "BurstShare": MARKED_FROM << 5,
    }
)
_POLICIES = sum(_POLICY.values())
_CLASSES = ONLINE | OFFLINE
_COUNT_BITS = 16
_ONLINE_AT = MARKED_FROM.bit_length() + 8
_OFFLINE_AT = _ONLINE_AT + _COUNT_BITS
_COUNT = (1 << _COUNT_BITS) - 1
_WHOLE = 100
"""Percent of compute: the device alone, whatever its policy."""


def marks_of(request: VGPURequest) -> int:
    """What a request is to others on its device; 0: its vendor's table has no such rules."""
    kind = kind_of(request.vendor.lower())
    if kind is None or kind.neighbours is None:
        return 0
    if request.app_class == "Online":
        return ONLINE
    marks = OFFLINE if request.app_class == "Offline" else _NEITHER
    if request.qos_policy is None or request.cores == _WHOLE:
        return marks
    return marks | _POLICY[request.qos_policy]


def joined(on_device: int, marks: int, slots: int) -> int:
    """What is on a device with so many slots more for a request with these marks."""
    online = slots if marks & ONLINE else 0
    offline = slots if marks & OFFLINE else 0
    return (on_device | marks) + (online << _ONLINE_AT) + (offline << _OFFLINE_AT)


def slots_by_class(on_device: int) -> tuple[int, int]:
    """Slots that serve the class Online, and those that serve the class Offline."""
    return on_device >> _ONLINE_AT & _COUNT, on_device >> _OFFLINE_AT & _COUNT


def refusal_beside(on_device: int, marks: int) -> Reason | None:
    """Whether a request with these marks may share a device with what is on it.

    An Offline pod would be suspended beside an Online one, so it does not start there.
    """
    if not on_device:
        return None
    if bool(on_device & _CLASSES) != bool(marks & _CLASSES):
        return Reason.CARD_APP_CLASS_MISMATCH
    if marks & OFFLINE and on_device & ONLINE:
        return Reason.CARD_APP_CLASS_MISMATCH
    own = marks & _POLICIES
    if own and on_device & _POLICIES & ~own:
        return Reason.CARD_QOS_POLICY_MISMATCH
    return None
