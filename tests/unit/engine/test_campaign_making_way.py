"""The judge's rules about evictions and groups, checked with histories that are made by hand."""

from __future__ import annotations

import pytest

from campaign_history import FULL, LEADER, History, part
from engine_campaign.making_way import Limits
from vgpu_api.resources import PODS

HALF = FULL // 2


def calm(history: History) -> History:
    """Record that there are no faults."""
    history.judge.calm_since = 0.0
    return history


def full_cluster(limits: Limits | None = None, **important: object) -> History:
    """Let a pod of priority 1000 wait, with two pods (100, 200) on each device."""
    history = calm(History(limits))
    for number, uuid in enumerate(("GPU-0", "GPU-1", "GPU-2")):
        for priority in (100, 200):
            name = f"p{priority}-{number}"
            history.runs_alone(name, HALF, uuid=uuid, priority=priority)
    history.pod("vip", ("app", "main", HALF), priority=1000, **important)
    return history


def test_an_eviction_that_makes_room_breaks_no_rule() -> None:
    history = full_cluster()
    history.evicts("p100-0", "vip")
    assert history.rules == []


@pytest.mark.parametrize("gap", [0, 900])
def test_a_victim_is_less_important_by_more_than_the_gap(gap: int) -> None:
    history = full_cluster(Limits(min_gap=gap))
    history.pod("equal", ("app", "main", HALF), priority=100 + gap)
    history.evicts("p100-0", "equal")
    assert "priority" in history.rules


def test_pods_that_come_back_to_their_node_are_no_victims() -> None:
    history = full_cluster()
    history.runs_alone("exporter", 0, priority=0, owner="DaemonSet")
    history.evicts("exporter", "vip")
    assert "daemon" in history.rules


def test_a_pod_whose_policy_is_never_preempts_nobody() -> None:
    history = full_cluster(spec={"preemptionPolicy": "Never"})
    history.evicts("p100-0", "vip")
    assert history.rules == ["never"]


def test_no_more_evictions_a_minute_than_configured() -> None:
    history = full_cluster(Limits(per_minute=2))
    history.judge.calm_since = float("inf")
    for name in ("p100-0", "p100-1", "p100-2"):
        history.evicts(name, "vip")
    assert history.rules == ["limit"]


def test_an_eviction_where_nobodys_end_helps_is_in_vain() -> None:
    history = full_cluster()
    history.pod("large", ("app", "main", FULL + 1), priority=1000)
    history.evicts("p100-0", "large")
    assert history.rules == ["in vain"]


def test_an_eviction_beside_pods_that_end_anyway_is_needless() -> None:
    for later, rules in ((False, []), (True, ["needless"])):
        history = full_cluster()
        history.pod(
            "p100-1", ("app", "main", HALF), node="node-1", priority=100, phase="Running",
            deletion_timestamp="2026-01-01T00:00:00Z",
        )  # fmt: skip
        if not later:  # it was deleted a moment ago
            history.judge.making_way._ending["uid-of-p100-1"] = history.at + 1.0
        history.evicts("p100-0", "vip")
        assert history.rules == rules


def test_a_second_victim_that_is_not_needed() -> None:
    history = full_cluster()
    history.evicts("p100-0", "vip")
    history.evicts("p200-0", "vip")
    assert history.rules == ["needless"]


def test_two_preemptions_for_one_pod() -> None:
    history = full_cluster()
    history.evicts("p100-0", "vip")
    history.evicts("p100-2", "vip")
    assert "two preemptions" in history.rules


def test_a_pod_that_a_budget_protects() -> None:
    for allowed, rules in ((1, []), (0, ["protected"])):
        history = full_cluster()
        history.runs_alone("web", 1, priority=0, labels={"app": "web"})
        history.budget("web", allowed)
        history.pod("large", ("app", "main", FULL), priority=1000)
        history.evicts("web", "large")
        assert [rule for rule in history.rules if rule == "protected"] == rules


def test_devices_that_others_made_way_for_are_taken_by_another_pod() -> None:
    for priority, rules in ((2000, []), (100, ["overtaken"])):
        history = full_cluster()
        history.evicts("p100-0", "vip")
        history.claim("p100-0")
        history.pod("late", ("app", "main", HALF), priority=priority)
        history.claim("late", part(HALF), number=77)
        assert [rule for rule in history.rules if rule == "overtaken"] == rules


def test_a_pod_that_others_made_way_for_in_vain() -> None:
    history = full_cluster()
    history.evicts("p100-0", "vip")
    history.judge.at_rest(history.at + 30.0)
    assert history.rules == []
    history.judge.at_rest(history.at + 100.0)
    assert "in vain" in history.rules


def test_a_pod_that_waits_although_others_could_make_way() -> None:
    history = full_cluster()
    history.judge.at_rest(1000.0)
    assert history.rules == ["preempts nobody"]
    history = full_cluster(Limits(is_enabled=False))
    history.judge.at_rest(1000.0)
    assert history.rules == []


def test_the_verb_keeps_victims_and_adds_less_important_ones_that_suffice() -> None:
    for node, uids, rules in (
        ("node-1", ["uid-of-p100-0"], []),
        ("node-1", [], ["verb"]),
        ("node-2", ["uid-of-p100-2"], ["verb"]),  # the question did not include that node
    ):
        history = full_cluster()
        proposed = {"node-1": ["uid-of-p100-0"]}
        history.judge.making_way.answered("uid-of-vip", proposed, {node: uids})
        assert [rule for rule in history.rules if rule == "verb"] == rules
    history = full_cluster()
    history.pod("large", ("app", "main", FULL), priority=1000)
    proposed = {"node-1": ["uid-of-p100-0"]}
    history.judge.making_way.answered("uid-of-large", proposed, proposed)
    assert history.rules == ["verb in vain"]


# Groups.


def a_group(least: int, size: int) -> History:
    """Return a waiting group with a Bind a moment ago."""
    history = calm(History())
    history.group("g", least)
    for number in range(size):
        history.pod(f"g-{number}", ("app", "main", 1024), group="g")
        history.judge.gangs.bind_asked("g", f"uid-of-g-{number}")
    return history


def give(history: History, number: int) -> None:
    """Allocate devices for a pod of the group, decided now."""
    history.at -= 1  # the write takes no time
    history.claim(f"g-{number}", part(1024), number=number + 1)


def start(history: History, number: int) -> None:
    """Bind a pod of the group."""
    history.pod(f"g-{number}", ("app", "main", 1024), group="g", node="node-1", by=LEADER)


def test_a_gang_that_starts_as_a_whole_breaks_no_rule() -> None:
    history = a_group(2, 2)
    for number in range(2):
        give(history, number)
    for number in range(2):
        start(history, number)
    history.judge.at_rest(float(history.at))
    assert [rule for rule in history.rules if rule != "waits"] == []


def test_a_gang_of_which_too_few_have_devices_as_one_starts() -> None:
    history = a_group(2, 3)
    give(history, 0)
    start(history, 0)
    assert history.rules == ["halves"]


def test_a_gang_of_which_one_pod_has_devices_and_no_bind_as_another_starts() -> None:
    history = a_group(2, 2)
    history.pod("g-2", ("app", "main", 1024), group="g")
    for number in (0, 2):
        give(history, number)
    start(history, 0)
    assert history.rules == ["halves"]


def test_a_place_of_a_group_that_is_written_before_any_bind() -> None:
    history = a_group(2, 2)
    history.at += 10
    give(history, 0)
    assert history.rules == ["provisional"]


def test_a_group_that_has_devices_and_does_not_start() -> None:
    history = a_group(2, 2)
    give(history, 0)
    for seconds, rules in ((0.0, []), (20.0, []), (40.0, ["group holds"])):
        history.judge.tick(history.at + seconds)
        assert history.rules == rules


def test_a_gang_that_waits_although_its_pods_fit() -> None:
    history = a_group(2, 2)
    history.judge.at_rest(1000.0)
    assert history.rules == ["group waits"]
    history = a_group(3, 2)  # it is not complete
    history.judge.at_rest(1000.0)
    assert history.rules == []


def test_a_gang_of_which_some_pods_were_evicted() -> None:
    history = a_group(2, 2)
    for number in range(2):
        give(history, number)
        start(history, number)
    history.pod("large", ("app", "main", FULL - 1024), priority=1000)
    history.evicts("g-0", "large")
    history.gone(PODS, "g-0")
    history.judge.at_rest(float(history.at))
    assert "halves" in history.rules
