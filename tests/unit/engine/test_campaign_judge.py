"""The judge of the engine's campaign accepts and rejects histories that are made by hand."""

from __future__ import annotations

from campaign_history import FULL, LEADER, History, part
from vgpu_api.resources import NODES, PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import AllocatedDevice


def granted(*claims: tuple[str, AllocatedDevice]) -> History:
    """Return a history of pods with a claim each."""
    history = History()
    for number, (name, of) in enumerate(claims):
        history.pod(name)
        history.claim(name, of, number=number)
    return history


def test_what_fits_breaks_no_rule() -> None:
    assert granted(("a", part(FULL - 1024)), ("b", part(1024))).rules == []


def test_more_memory_than_the_device_has() -> None:
    assert granted(("a", part(FULL)), ("b", part(1024))).rules == ["capacity"]


def test_more_slots_than_the_device_has() -> None:
    claims = [(f"p{number}", part()) for number in range(11)]
    assert granted(*claims).rules == ["capacity"]


def test_more_compute_than_the_device_has() -> None:
    assert granted(("a", part(cores=60)), ("b", part(cores=50))).rules == ["capacity"]


def test_a_device_that_is_anothers_alone() -> None:
    assert granted(("a", part(cores=100)), ("b", part())).rules == ["exclusive"]
    assert granted(("a", part()), ("b", part(cores=100))).rules == ["exclusive"]


def a_pod_with(first: str, second: str) -> History:
    """Return a history with init containers of 3,000 and 9,000 MiB and an app of 1,000."""
    history = granted(("other", part(5000)))
    history.pod("a", (first, "side", 3000), (second, "prep", 9000), ("app", "main", 1000))
    parts = [part(3000, request="side"), part(9000, request="prep"), part(1000)]
    history.claim("a", *parts, number=1)
    return history


def test_a_sidecar_runs_beside_the_init_containers_after_it() -> None:
    """They need 12,000 MiB together; an ordinary init container would have ended by then."""
    assert a_pod_with("sidecar", "init").rules == ["capacity"]
    assert a_pod_with("init", "init").rules == []


def test_an_allocation_without_its_finalizer() -> None:
    history = History()
    history.pod("a")
    history.claim("a", part(), finalizer=False)
    assert history.rules == ["finalizer"]


def test_a_binding_without_an_allocation_on_that_node() -> None:
    for node, rules in (("node-1", []), ("node-2", ["bound"])):
        history = granted(("a", part()))
        history.pod("a", node=node, by=LEADER)
        assert history.rules == rules
    history = History()
    history.pod("a")
    history.pod("a", node="node-1", by=LEADER)
    assert history.rules == ["bound"]


def test_a_foreign_binding_is_not_the_leaders() -> None:
    history = History()
    history.pod("a")
    history.pod("a", node="node-1")
    assert history.rules == []


def running(mib: int = 2048) -> History:
    history = granted(("a", part(mib)))
    history.pod("a", node="node-1", by=LEADER)
    history.runs("a", part(mib))
    return history


def test_devices_that_go_while_containers_use_them() -> None:
    history = running()
    history.claim("a")
    assert history.rules == ["in use", "bound pod"]


def test_devices_that_go_after_the_agent_has_reported_their_end() -> None:
    history = running()
    history.judge.ended("uid-of-a")
    history.claim("a", part(2048), released=True)
    history.claim("a")
    assert history.rules == []


def test_devices_that_change_while_containers_use_them() -> None:
    history = running()
    history.claim("a", part(2048, uuid="GPU-1"))
    assert history.rules == ["in use"]
    history = running()
    history.claim("a", part(1024))
    assert history.rules == ["in use"]


def test_devices_that_grow_while_containers_use_them() -> None:
    history = running()
    history.claim("a", part(4096))
    assert history.rules == []


def test_processes_that_outlive_a_forced_deletion_keep_their_devices() -> None:
    history = running()
    history.gone(PODS, "a")
    history.claim("a")
    assert history.rules == ["in use"]
    history = running()
    history.gone(PODS, "a")
    history.gone(NODES, "node-1")  # and no agent is there to report it
    history.claim("a")
    assert history.rules == []


def test_devices_that_are_taken_from_a_bound_pod_before_it_starts() -> None:
    history = granted(("a", part()))
    history.pod("a", node="node-1", by=LEADER)
    history.claim("a", part(), number=7)
    assert history.rules == ["bound pod"]


def test_more_than_the_quota() -> None:
    for mib, rules in ((4096, []), (3000, ["quota"])):
        history = History()
        history.quota(mib)
        history.knows_quotas()
        history.pod("a")
        history.claim("a", part(4096))
        assert history.rules == rules


def test_a_quota_that_the_leader_cannot_know_yet() -> None:
    history = History()
    history.knows_quotas()
    history.quota(3000)
    history.pod("a")
    history.claim("a", part(4096))
    assert history.rules == []


def at_rest(history: History) -> list[str]:
    history.judge.at_rest(1000.0)
    return history.rules


def test_a_pod_waits_though_there_is_room() -> None:
    history = granted(("a", part(FULL)), ("b", part(FULL, uuid="GPU-1")))
    history.pod("a", node="node-1")
    history.pod("b", node="node-1")
    history.pod("waits", ("app", "main", 2048))
    assert at_rest(history) == ["waits"]


def test_a_pod_waits_because_there_is_none() -> None:
    history = granted(("a", part(FULL)), ("b", part(FULL, uuid="GPU-1")))
    history.pod("a", node="node-1")
    history.pod("b", node="node-1")
    history.device("GPU-2", "node-2", healthy=False)
    history.pod("waits", ("app", "main", 2048))
    assert at_rest(history) == []


def test_a_pod_waits_where_devices_may_be_kept_for_another() -> None:
    """A bound pod that lacks devices on its node may have waited longer."""
    for node, rules in (("node-1", []), ("node-2", ["waits"])):
        history = granted(("a", part(8192)))
        history.pod("a", node="node-1")
        history.pod("b")
        history.claim("b", part(FULL, uuid="GPU-2"), node="node-2", number=1)
        history.pod("b", node="node-2")
        history.pod("starves", ("app", "main", FULL), node=node)
        history.pod("waits", ("app", "main", 2048))
        assert at_rest(history) == rules


def test_a_pod_waits_for_the_quota() -> None:
    history = History()
    history.quota(1000)
    history.pod("waits", ("app", "main", 2048))
    assert at_rest(history) == []


def test_what_a_gone_pod_holds_at_rest_has_leaked() -> None:
    history = granted(("a", part()))
    history.pod("a", node="node-1")
    history.gone(PODS, "a")
    assert at_rest(history) == ["leak"]


def test_what_a_pod_holds_on_another_node_than_its_own() -> None:
    history = granted(("a", part()))
    history.pod("a", node="node-2")
    assert at_rest(history) == ["elsewhere"]


def test_a_claim_that_is_left_at_the_end() -> None:
    history = granted(("a", part()))
    history.judge.emptied(1000.0)
    assert history.rules == ["leak"]
    history.gone(VGPU_CLAIMS, "a")
    history.judge.findings.clear()
    history.judge.emptied(1000.0)
    assert history.rules == []


def test_a_device_that_the_last_pods_do_not_get() -> None:
    history = History()
    history.pod("whole-0")
    history.judge.unplaced(1000.0)
    assert history.rules == ["leak"]


def test_a_restored_state_is_the_truth_from_then_on() -> None:
    history = granted(("a", part(FULL)))
    objects = [
        (plural, obj) for (plural, _), obj in history.wires.items() if plural != VGPU_CLAIMS.plural
    ]
    history.judge.restored(objects, 1_000_000, 0.0)
    history.at = 100
    history.pod("b")
    history.claim("b", part(FULL), number=1)
    assert history.rules == []
