"""Decides which pods may share a device, for vendors whose tables have such rules.

The *marks* of a request are its class and the policy that it needs, as one bit each. The marks of a
device are the union of its requests' marks, plus the number of slots of each class. They are
derived from claims alone, so they survive a restart. The policy that a node registers for a device
is not needed: an unused device accepts any policy. Source: HAMi v2.10.0, MetaX sGPU.

Marks share a column with the MIG slices of a device and use the bits above them
(docs/design/vendors.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_api.v1alpha1.vgpuclaim import QosPolicy
from vgpu_api.vendors import kind_of

MARKED_FROM = 1 << 128
"""The lowest bit of a mark; lower bits are MIG slices or numbered cores."""
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
"""All compute of a device, in percent. Such a request is alone, so its policy does not matter."""


def marks_of(request: VGPURequest) -> int:
    """Return the marks of a request, or 0 if its vendor has no such rules."""
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
    """Return the marks of a device after slots are allocated to a request with these marks."""
    online = slots if marks & ONLINE else 0
    offline = slots if marks & OFFLINE else 0
    return (on_device | marks) + (online << _ONLINE_AT) + (offline << _OFFLINE_AT)


def slots_by_class(on_device: int) -> tuple[int, int]:
    """Return the numbers of slots that Online pods and Offline pods use."""
    return on_device >> _ONLINE_AT & _COUNT, on_device >> _OFFLINE_AT & _COUNT


def refusal_beside(on_device: int, marks: int) -> Reason | None:
    """Return why a request with these marks cannot share a device, or None if it can.

    An Offline pod is not placed on a device with Online pods, because these would suspend it.
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
