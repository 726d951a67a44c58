"""Reasons become one text, the same everywhere, in the words that people grep for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vgpu_api.reasons import Reason, Tally, sum_up

tallies = st.builds(
    Tally,
    st.dictionaries(st.sampled_from(list(Reason)), st.integers(min_value=0, max_value=50)),
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


def test_the_leading_reason_applied_most_and_a_tie_goes_by_name() -> None:
    tied = Tally({Reason.NUMA_NOT_FIT: 2, Reason.CARD_CORDONED: 2, Reason.NODE_TAINTED: 1}, 3)
    assert tied.leading() is Reason.CARD_CORDONED
    assert Tally({}, 3).leading() is None


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
    """Invariant: truth, text and leading reason agree."""
    assert bool(tally) == bool(str(tally)) == (tally.leading() is not None)
