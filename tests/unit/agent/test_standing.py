"""The agent registers again if needed, and reports why its slots are not offered."""

from __future__ import annotations

import itertools

from vgpu_nodeagent.state.plugin_standing import (
    FIRST_BACKOFF_S,
    LAST_BACKOFF_S,
    QUIET_S,
    Look,
    PluginStanding,
    PluginState,
)

SLOTS = frozenset({"slot-0", "slot-1"})
HEARD = Look(is_read=True, offered=SLOTS, listed=SLOTS)
UNREAD = Look(is_read=False, offered=SLOTS, listed=frozenset())
REPLACED = Look(is_read=True, offered=SLOTS, listed=frozenset({"GPU-0::0"}))


def registrations(look: Look, *, until_s: float, every_s: float = 3.0) -> list[float]:
    """Return the times of further registrations while nothing changes."""
    standing = PluginStanding("nvidia.com/gpu")
    return [
        now
        for now in itertools.takewhile(lambda t: t <= until_s, itertools.count(0.0, every_s))
        if standing.see(look, now=now)
    ]


def test_a_kubelet_that_offers_our_slots_is_left_alone():
    assert registrations(HEARD, until_s=3600) == []


def test_a_kubelet_that_does_not_answer_is_believed_to_offer_what_it_reads():
    assert registrations(Look(is_read=True, offered=SLOTS, listed=None), until_s=60) == []


def test_a_list_that_lags_behind_once_is_no_loss():
    standing = PluginStanding("nvidia.com/gpu")
    assert not standing.see(UNREAD, now=0)
    assert standing.state is PluginState.CONNECTED
    assert not standing.see(HEARD, now=3)
    assert not standing.see(UNREAD, now=6)
    assert standing.state is PluginState.CONNECTED


def test_nobody_is_fought_in_a_tight_loop():
    for look in (UNREAD, REPLACED):
        times = registrations(look, until_s=7200)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps == sorted(gaps)
        assert gaps[-1] >= LAST_BACKOFF_S
        assert len(times) < 40


def test_a_plugin_that_takes_the_name_back_each_time_is_answered_ever_more_seldom():
    standing = PluginStanding("nvidia.com/gpu")
    registered, replaced = [], True
    for now in range(0, 3600, 3):
        look = REPLACED if replaced else HEARD
        if standing.see(look, now=float(now)):
            registered.append(now)
            replaced = False
        else:
            replaced = True
    assert len(registered) < 25


def test_the_back_off_begins_anew_after_a_long_quiet():
    standing = PluginStanding("nvidia.com/gpu")
    times = iter(range(0, 600, 3))
    for now in itertools.islice(times, 100):
        standing.see(REPLACED, now=float(now))
    standing.see(HEARD, now=300.0)
    standing.see(HEARD, now=300.0 + QUIET_S)
    lost_at = 301.0 + QUIET_S
    assert not standing.see(REPLACED, now=lost_at)
    assert standing.see(REPLACED, now=lost_at + FIRST_BACKOFF_S)


def test_another_plugin_is_named_at_once_and_forgotten_when_our_slots_are_offered_again():
    standing = PluginStanding("nvidia.com/gpu")
    standing.see(REPLACED, now=0)
    assert standing.problem is not None
    assert standing.problem.reason == "PluginReplaced"
    assert "GPU-0::0" in standing.problem.message
    standing.see(HEARD, now=3)
    assert (standing.state, standing.problem) == (PluginState.CONNECTED, None)


def test_a_lost_stream_is_worth_a_word_only_when_a_registration_did_not_help():
    standing = PluginStanding("nvidia.com/gpu")
    said = []
    for now in (0.0, 3.0, 6.0, 9.0):
        again = standing.see(UNREAD, now=now)
        said.append((again, standing.problem.reason if standing.problem else ""))
    assert said == [(False, ""), (False, ""), (True, ""), (False, "PluginDisconnected")]
