"""The pods beside which a device may serve another one, by classes and policies."""

from __future__ import annotations

from functools import reduce

import pytest

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_operator.vendors.neighbours import (
    MARKED_FROM,
    joined,
    marks_of,
    refusal_beside,
    slots_by_class,
)


def marks(**fields: object) -> int:
    return marks_of(VGPURequest.model_validate({"vendor": "metax-sgpu", **fields}))


PLAIN = marks(qosPolicy="BestEffort")
FIXED = marks(qosPolicy="FixedShare")
ONLINE = marks(appClass="Online")
OFFLINE = marks(appClass="Offline", qosPolicy="BestEffort")
WHOLE = marks(qosPolicy="BestEffort", cores=100)


def test_requests_of_which_it_does_not_matter_have_no_marks() -> None:
    assert marks_of(VGPURequest()) == 0
    assert marks_of(VGPURequest(vendor="hygon")) == 0
    assert marks_of(VGPURequest(vendor="no-such-vendor")) == 0


def test_marks_lie_above_slices_and_numbered_cores() -> None:
    for its in (PLAIN, FIXED, ONLINE, OFFLINE, WHOLE):
        assert its >= MARKED_FROM
        assert its % MARKED_FROM == 0


@pytest.mark.parametrize("its", [PLAIN, FIXED, ONLINE, OFFLINE, WHOLE])
def test_a_device_that_serves_none_takes_any(its: int) -> None:
    assert refusal_beside(0, its) is None


@pytest.mark.parametrize(
    ("there", "comes", "why"),
    [
        (PLAIN, PLAIN, None),
        (PLAIN, FIXED, Reason.CARD_QOS_POLICY_MISMATCH),
        (PLAIN, ONLINE, Reason.CARD_APP_CLASS_MISMATCH),
        (PLAIN, OFFLINE, Reason.CARD_APP_CLASS_MISMATCH),
        (PLAIN, WHOLE, None),  # its compute keeps the pod away
        (ONLINE, PLAIN, Reason.CARD_APP_CLASS_MISMATCH),
        (ONLINE, ONLINE, None),
        (ONLINE, OFFLINE, Reason.CARD_APP_CLASS_MISMATCH),
        (OFFLINE, PLAIN, Reason.CARD_APP_CLASS_MISMATCH),
        (OFFLINE, ONLINE, None),
        (OFFLINE, OFFLINE, None),
        (
            OFFLINE,
            marks(appClass="Offline", qosPolicy="BurstShare"),
            Reason.CARD_QOS_POLICY_MISMATCH,
        ),
        (WHOLE, FIXED, None),  # it has no policy, and leaves no compute
    ],
)
def test_a_device_in_use_takes_its_own_class_and_policy(
    there: int, comes: int, why: Reason | None
) -> None:
    assert refusal_beside(joined(0, there, 1), comes) == why


def all_joined(shares: list[tuple[int, int]]) -> int:
    """Return the marks and slots on a device whose claims have these shares."""
    return reduce(lambda there, share: joined(there, *share), shares, 0)


def test_slots_are_counted_by_class_and_numbers_of_them_touch_no_marks() -> None:
    on_device = all_joined([(OFFLINE, 3), (ONLINE, 2), (ONLINE, 1)])
    assert slots_by_class(on_device) == (3, 3)
    assert slots_by_class(all_joined([(PLAIN, 7)])) == (0, 0)
    many = all_joined([(ONLINE, 1000)] * 60)
    assert slots_by_class(many) == (60_000, 0)
    assert refusal_beside(many, ONLINE) is None
