"""Use above the limits counts as excess by its sum over several samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_api.quantity import MIB
from vgpu_nodeagent.enforcement.excess import QUIET_S, ComputeExcess, MemoryExcess

GIB = 1 << 30


def hold(account: MemoryExcess, held: int, limit: int, *, since: int, seconds: int) -> int | None:
    """Look every second, and return the first second of a violation or None."""
    for now in range(since, since + seconds):
        account.look(held, limit, now=float(now))
        if account.violating:
            return now
    return None


@pytest.mark.parametrize(
    ("limit", "tolerated", "pulse"),
    [(GIB // 2, 16 * MIB, 64 * MIB), (GIB, GIB // 50, 64 * MIB), (10 * GIB, GIB // 5, GIB // 5)],
)
def test_a_little_above_the_limit_is_tolerated_and_a_little_more_for_a_time(
    limit: int, tolerated: int, pulse: int
) -> None:
    assert hold(MemoryExcess(), limit + tolerated, limit, since=0, seconds=3600) is None
    assert hold(MemoryExcess(), limit + tolerated * 3 // 2, limit, since=0, seconds=90) is not None
    assert hold(MemoryExcess(), limit + pulse + MIB, limit, since=0, seconds=90) == 1


def test_a_claim_of_one_gibibyte_is_not_given_six_percent_more() -> None:
    when = hold(MemoryExcess(), GIB + 50 * MIB, GIB, since=0, seconds=60)
    assert when is not None
    assert when <= 30


@given(st.lists(st.integers(0, 10 * GIB), max_size=200), st.integers(1, 300))
def test_who_stays_within_its_limit_never_violates_it(held: list[int], gap: int) -> None:
    """This holds for any use up to the limit, and however late the samples are."""
    account = MemoryExcess()
    for number, now in enumerate(held):
        account.look(now, 10 * GIB, now=float(number * gap))
    assert not account.violating
    assert account.excess_byte_seconds == 0


@given(st.lists(st.booleans(), min_size=100, max_size=200))
def test_two_looks_above_in_any_minute_are_reported_and_one_is_not(above: list[bool]) -> None:
    """A violation begins exactly with two samples far above the limit within 60 s."""
    account = MemoryExcess()
    times: list[int] = []
    for now, is_above in enumerate(above):
        account.look(2 * GIB if is_above else 0, GIB, now=float(now))
        if is_above:
            times.append(now)
        recent = [t for t in times if t > now - 60]
        if len(recent) >= 2 and is_above:
            assert account.violating
        if len(times) < 2:
            assert not account.violating


def test_one_look_above_and_minutes_later_another_are_no_pulses() -> None:
    account = MemoryExcess()
    for now in range(400):
        account.look(GIB + 100 * MIB if now % 100 == 0 else 0, GIB, now=float(now))
        assert not account.violating


def test_it_obeys_after_half_a_minute_within_its_limit_and_not_before() -> None:
    account = MemoryExcess()
    hold(account, 2 * GIB, GIB, since=0, seconds=10)
    assert account.violating
    now = 1.0
    while account.violating:
        now += 1
        account.look(0, GIB, now=now)
    assert now == 1 + QUIET_S


def test_a_new_peak_in_the_drivers_accounts_is_proof_however_short_it_was() -> None:
    account = MemoryExcess()
    account.look(0, GIB, now=0.0, peaks={1: 100 * MIB})
    account.look(0, GIB, now=1.0, peaks={1: 5 * GIB})
    assert account.violating
    assert account.peak() == 5 * GIB
    for now in range(2, 60):
        account.look(0, GIB, now=float(now), peaks={1: 5 * GIB})
    assert not account.violating  # accounting keeps reporting the same peak


@pytest.mark.parametrize(("limit", "margin"), [(GIB, 64 * MIB), (10 * GIB, GIB // 5)])
def test_a_new_peak_is_proof_from_the_first_byte_above_the_margin(limit: int, margin: int) -> None:
    for above, is_proof in ((0, False), (1, True)):
        account = MemoryExcess()
        account.look(0, limit, now=0.0, peaks={})
        account.look(0, limit, now=1.0, peaks={1: limit + margin + above})
        assert account.violating is is_proof


def test_peaks_of_before_the_first_look_accuse_nobody() -> None:
    account = MemoryExcess()
    for now in range(3):
        account.look(0, GIB, now=float(now), peaks={1: 5 * GIB})
    assert not account.violating


def test_a_resized_claim_is_measured_by_its_new_limit_from_then_on() -> None:
    account = MemoryExcess()
    account.look(3 * GIB, 2 * GIB, now=0.0)
    account.look(3 * GIB, 4 * GIB, now=1.0)
    account.look(3 * GIB, 4 * GIB, now=2.0)
    assert not account.violating
    assert account.excess_byte_seconds == 0


def test_a_peak_under_the_limit_of_then_is_none_above_the_limit_of_now() -> None:
    """The peak was reached after the last sample under the larger limit."""
    account = MemoryExcess()
    account.look(0, 8 * GIB, now=0.0, peaks={1: 1 * GIB})
    account.look(0, 2 * GIB, now=1.0, peaks={1: 5 * GIB})
    account.look(0, 2 * GIB, now=2.0, peaks={1: 5 * GIB})
    assert not account.violating
    account.look(0, 2 * GIB, now=3.0, peaks={1: 6 * GIB})
    assert account.violating


def test_a_time_in_which_nobody_looked_is_not_held_against_anybody() -> None:
    account = MemoryExcess()
    account.look(GIB + 30 * MIB, GIB, now=0.0)
    account.look(GIB + 30 * MIB, GIB, now=3600.0)
    assert not account.violating
    assert account.excess_byte_seconds == 5 * 30 * MIB


def test_compute_is_judged_by_half_a_minute_at_least() -> None:
    account = ComputeExcess()
    for now in range(30):
        account.look(100.0, 20, now=float(now))
        assert not account.violating
    account.look(100.0, 20, now=30.0)
    assert account.violating
    assert account.average() == 100.0


@given(st.integers(1, 99), st.lists(st.floats(-10, 10), min_size=100, max_size=100))
def test_a_share_that_is_kept_within_ten_points_is_no_violation(
    share: int, errors: list[float]
) -> None:
    """The library's largest error on a busy machine is smaller."""
    account = ComputeExcess()
    for now, error in enumerate(errors):
        account.look(min(100.0, max(0.0, share + error)), share, now=float(now))
        assert not account.violating


def test_looks_at_which_the_share_is_not_in_force_do_not_count() -> None:
    account = ComputeExcess()
    for now in range(200):
        account.look(100.0, 20, now=float(now), counts=False)
    assert account.covered() == 0
    assert not account.violating
