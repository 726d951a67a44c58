"""Reasons become one text, the same everywhere, with the terms that users search for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_api.reasons import CURES, OF_A_NODE, Reason, Tally, stopping, sum_up

tallies = st.builds(
    Tally,
    st.dictionaries(st.sampled_from(list(CURES)), st.integers(min_value=0, max_value=50)),
    st.integers(min_value=0, max_value=100),
)


def test_reasons_are_counted_sorted_and_joined() -> None:
    tally = Tally({Reason.CARD_TYPE_MISMATCH: 1, Reason.CARD_INSUFFICIENT_MEMORY: 2}, total=8)
    assert str(tally) == "1/8 CardTypeMismatch, 2/8 CardInsufficientMemory"


def test_a_reason_that_never_applied_is_not_told() -> None:
    tally = Tally({Reason.CARD_CORDONED: 0, Reason.NUMA_NOT_FIT: 1}, total=1)
    assert str(tally) == "1/1 NumaNotFit"
    assert not Tally({Reason.CARD_CORDONED: 0}, total=3)


def test_hamis_words_are_kept_byte_for_byte() -> None:
    words = (
        "CardNotHealth CardCordoned CardTypeMismatch NumaNotFit CardUuidMismatch "
        "CardTimeSlicingExhausted ExclusiveDeviceAllocateConflict ResourceQuotaNotFit "
        "CardInsufficientMemory CardInsufficientCore CardComputeUnitsExhausted "
        "CardMigTopologyInfeasible CardNotFoundCustomFilterRule "
        "AllocatedCardsInsufficientRequest NodeInsufficientDevice"
    )
    assert set(words.split()) <= {reason.value for reason in Reason}


def of_devices(**counts: int) -> Tally:
    return Tally({Reason(name): count for name, count in counts.items()}, sum(counts.values()))


@pytest.mark.parametrize(
    ("devices", "nodes", "stops"),
    [
        # Devices that the request itself excludes are never mentioned while something else stops
        # it.
        ({"CardTypeMismatch": 40, "CardInsufficientMemory": 1}, {}, "CardInsufficientMemory"),
        ({"CardTypeMismatch": 4, "ResourceQuotaNotFit": 2}, {}, "ResourceQuotaNotFit"),
        ({"CardUuidMismatch": 7, "CardNotHealth": 1}, {}, "CardNotHealth"),
        ({"CardTypeMismatch": 4}, {"NodeUnschedulable": 1}, "NodeUnschedulable"),
        # A repair is suggested only if ending others would not help.
        ({"CardNotHealth": 5, "CardInsufficientCore": 1}, {}, "CardInsufficientCore"),
        ({"CardCordoned": 1}, {"NodeSelectorMismatch": 30}, "CardCordoned"),
        # A device that is refused by quota has a slot, so ending others does not help.
        ({"CardTimeSlicingExhausted": 6, "ResourceQuotaNotFit": 2}, {}, "ResourceQuotaNotFit"),
        # Too few devices fit, so the other ones give the reason.
        (
            {"AllocatedCardsInsufficientRequest": 7, "CardInsufficientMemory": 1},
            {},
            "CardInsufficientMemory",
        ),
        (
            {"AllocatedCardsInsufficientRequest": 2, "CardTypeMismatch": 6},
            {},
            "AllocatedCardsInsufficientRequest",
        ),
        # Among equals: devices before nodes, then the most frequent, then by name.
        ({"CardTypeMismatch": 1}, {"NodeSelectorMismatch": 9}, "CardTypeMismatch"),
        ({"CardInsufficientMemory": 2, "NumaNotFit": 3}, {}, "NumaNotFit"),
        ({"CardInsufficientMemory": 2, "CardInsufficientCore": 2}, {}, "CardInsufficientCore"),
    ],
)
def test_the_reason_of_a_claim_is_the_one_that_stops_it_now(
    devices: dict[str, int], nodes: dict[str, int], stops: str
) -> None:
    assert stopping(of_devices(**devices), of_devices(**nodes)) == stops


def test_every_reason_of_a_device_or_a_node_has_a_cure() -> None:
    """The enum lists them first: those of devices, then those of nodes, up to NoGPUNodes."""
    names = list(Reason)
    of_both = {*names[: names.index(Reason.NO_GPU_NODES)], Reason.RESERVED_ELSEWHERE}
    assert set(CURES) == of_both
    assert {reason for reason in of_both if reason.startswith(("Node", "Reserved"))} == OF_A_NODE


@given(parts=st.lists(st.tuples(tallies, st.integers(1, 4)), max_size=5))
def test_summing_up_loses_nothing(parts: list[tuple[Tally, int]]) -> None:
    """Invariant: each reason's count, and the total, are the sums over the parts."""
    whole = sum_up(parts)
    assert whole.total == sum(times * part.total for part, times in parts)
    for reason in Reason:
        alone = (times * part.counts.get(reason, 0) for part, times in parts)
        assert whole.counts.get(reason, 0) == sum(alone)


@given(tally=tallies)
def test_a_tally_without_text_is_empty(tally: Tally) -> None:
    """Invariant: truth, text and reason agree."""
    assert bool(tally) == bool(str(tally)) == (stopping(tally) is not None)
