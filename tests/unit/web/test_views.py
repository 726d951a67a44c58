"""The page's views of the cluster for users with different rights."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders import GATE, a_container, a_device, a_node, a_pod
from storage_objects import a_volume, a_volume_claim, read, using
from vgpu_api.errors import BadInput
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED, SCHEDULING_GATE
from vgpu_operator.engine import events
from vgpu_operator.insight.live_cluster import Unread
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web import views
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.sight import Sight, VisitorRefused
from vgpu_operator.web.usage import FleetUsage, Used
from web_world import a_holder, a_mirror, a_waiter

ADMIN = Sight("admin", devices=True, nodes=True, everywhere=True)
TENANT = Sight("tenant", devices=True, namespaces=frozenset({"mine"}))
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def nodes(mirror: Any, sight: Sight = ADMIN, **given: str) -> Any:
    return views.nodes(mirror, sight, views.Query.read(given, views.NODE_ORDERS))


def claims(mirror: Any, sight: Sight = ADMIN, **given: str) -> Any:
    return views.claims(mirror, sight, views.Query.read(given, views.CLAIM_ORDERS))


def test_the_fleet_is_summed_up() -> None:
    mirror = a_mirror(claims=[a_holder("a"), a_holder("b", uuid="GPU-0-0"), a_waiter("c")])
    found = views.fleet(mirror, ADMIN)
    devices = found["devices"]
    assert (devices["nodes"], devices["total"], devices["states"]) == (2, 4, {"Ready": 4})
    assert devices["memory"] == {"held": 8192, "given": 4 * 16_384}
    assert devices["cores"] == {"held": 50, "given": 400}
    assert [(m["model"], m["devices"], m["unused"]) for m in devices["models"]] == [
        ("Tesla T4", 4, 3)
    ]
    assert found["claims"]["states"] == {"InUse": 2, "Waiting": 1}
    assert found["claims"]["reasons"] == {"CardInsufficientMemory": 1}
    assert found["claims"]["waitingSince"] == "2026-01-01T00:00:00Z"


def test_fragmentation_is_the_free_memory_on_devices_that_are_partly_used() -> None:
    mirror = a_mirror(nodes=1, claims=[a_holder("a", memory_mib=12_288)])
    found = views.fleet(mirror, ADMIN)["devices"]["fragmentation"]
    assert found == {"freeMiB": 20_480, "splitMiB": 4096, "ratio": 0.2}


def test_claims_of_other_namespaces_are_one_sum() -> None:
    mirror = a_mirror(claims=[a_holder("a", namespace="mine"), a_holder("b", namespace="theirs")])
    found = views.fleet(mirror, TENANT)
    assert [row["name"] for row in found["namespaces"]["items"]] == ["mine"]
    assert found["others"] == {"claims": 1, "waiting": 0, "memoryMiB": 4096, "cores": 25}


def test_without_the_right_to_devices_there_are_own_claims_alone() -> None:
    mirror = a_mirror(claims=[a_holder("a", namespace="mine"), a_holder("b", namespace="theirs")])
    sight = Sight("tenant", namespaces=frozenset({"mine"}))
    found = views.fleet(mirror, sight)
    assert (found["devices"], found["others"], found["claims"]["total"]) == (None, None, 1)
    assert claims(mirror, sight)["others"] is None
    for ask in (lambda: nodes(mirror, sight), lambda: views.node(mirror, sight, "node-0")):
        with pytest.raises(VisitorRefused, match=r'"tenant" cannot list gpudevices\.vgpu\.dev'):
            ask()


def test_a_page_of_nodes_is_sorted_filtered_and_bounded() -> None:
    mirror = a_mirror(nodes=12, devices=1, claims=[a_holder("a", uuid="GPU-7-0", node="node-7")])
    first = nodes(mirror, size="5")
    assert [row["name"] for row in first["items"]] == [
        "node-0", "node-1", "node-10", "node-11", "node-2",
    ]  # fmt: skip
    assert (first["total"], first["pages"]) == (12, 3)
    assert [row["name"] for row in nodes(mirror, size="5", page="3")["items"]] == [
        "node-8",
        "node-9",
    ]
    assert nodes(mirror, size="5", page="9")["page"] == 3
    assert nodes(mirror, sort="-memory", size="1")["items"][0]["name"] == "node-7"
    assert nodes(mirror, text="node-1")["total"] == 3
    assert nodes(mirror, state="NotReady")["total"] == 0


def test_the_condition_of_a_node_is_shown_to_those_who_may_list_nodes() -> None:
    mirror = a_mirror(nodes=1)
    mirror.observe(events.NodeObserved(a_node("node-0", ready=False, resource_version=2)))
    assert nodes(mirror)["states"] == {"NotReady": 1}
    assert nodes(mirror, TENANT)["states"] == {"Ready": 1}


def test_rows_follow_what_is_observed() -> None:
    mirror = a_mirror(nodes=1)
    assert nodes(mirror)["items"][0]["memory"]["held"] == 0
    claim = a_holder("a")
    mirror.observe(events.ClaimObserved(claim))
    assert nodes(mirror)["items"][0]["memory"]["held"] == 4096
    sick = a_device(uuid="GPU-0-1", node="node-0", index=1, healthy=False, resource_version=2)
    mirror.observe(events.DeviceObserved(sick))
    assert nodes(mirror)["items"][0]["states"] == {"Ready": 1, "Unhealthy": 1}
    mirror.observe(events.ClaimDeleted(ClaimKey("default", "a"), claim.metadata.uid))
    assert nodes(mirror)["items"][0]["memory"]["held"] == 0
    assert claims(mirror)["total"] == 0
    mirror.observe(events.DeviceDeleted(sick.metadata.name))
    assert nodes(mirror)["items"][0]["devices"] == 1


def test_a_device_names_the_claims_that_are_readable_and_counts_the_others() -> None:
    mirror = a_mirror(claims=[a_holder("a", namespace="mine"), a_holder("b", namespace="theirs")])
    first = views.node(mirror, TENANT, "node-0")["items"][0]
    assert [(each["namespace"], each["name"], each["pod"]) for each in first["holders"]] == [
        ("mine", "a", "pod-of-a")
    ]
    assert first["others"] == {"claims": 1, "memoryMiB": 4096, "cores": 25}


def test_a_node_that_is_not_there_is_named() -> None:
    with pytest.raises(VisitorRefused, match="no node node-7 with devices") as refused:
        views.node(a_mirror(), ADMIN, "node-7")
    assert refused.value.status == 404


def test_claims_are_filtered_by_state_namespace_and_name() -> None:
    mirror = a_mirror(claims=[a_holder("a"), a_waiter("b"), a_waiter("c", namespace="mine")])
    names = [row["name"] for row in claims(mirror, state="Waiting", sort="-name")["items"]]
    assert names == ["c", "b"]
    assert claims(mirror, namespace="mine")["total"] == 1
    assert claims(mirror, text="pod-of-a")["items"][0]["name"] == "a"


def test_a_tenant_sees_his_own_claims_and_how_many_others_there_are() -> None:
    mirror = a_mirror(claims=[a_holder("a", namespace="mine"), a_waiter("b", namespace="theirs")])
    found = claims(mirror, TENANT)
    assert [row["name"] for row in found["items"]] == ["a"]
    assert (found["states"], found["namespaces"], found["others"]) == ({"InUse": 1}, ["mine"], 1)
    with pytest.raises(VisitorRefused, match='in namespace "theirs"'):
        claims(mirror, TENANT, namespace="theirs")


def test_a_claim_of_another_namespace_is_refused_whether_it_is_there_or_not() -> None:
    mirror = a_mirror(claims=[a_waiter("b", namespace="theirs")])
    for name in ("b", "no-such"):
        with pytest.raises(VisitorRefused) as refused:
            views.claim(mirror, TENANT, ClaimKey("theirs", name), now=NOW)
        assert refused.value.status == 403


def test_a_waiting_claim_is_explained_in_the_words_of_its_condition_and_of_the_engine() -> None:
    mirror = a_mirror(
        nodes=1,
        devices=1,
        claims=[
            a_holder("a", namespace="theirs", memory_mib=12_288),
            a_waiter("b", namespace="mine", memory="8Gi"),
        ],
    )
    found = views.claim(mirror, TENANT, ClaimKey("mine", "b"), now=NOW)
    why = found["why"]
    assert (why["reason"], why["message"]) == ("CardInsufficientMemory", "0/2 nodes fit")
    assert "CardInsufficientMemory" in why["now"]
    (node,) = why["nodes"]
    assert node["end_first"] == ["1 claim of other namespaces"]
    assert node["devices"][0]["held_by"] == ["1 claim of other namespaces (12Gi, 25 %)"]
    named = views.claim(mirror, ADMIN, ClaimKey("mine", "b"), now=NOW)["why"]["nodes"][0]
    assert named["end_first"] == ["theirs/a"]


def test_without_the_right_to_devices_a_claim_is_explained_without_nodes() -> None:
    mirror = a_mirror(claims=[a_waiter("b", namespace="mine")])
    sight = Sight("tenant", namespaces=frozenset({"mine"}))
    why = views.claim(mirror, sight, ClaimKey("mine", "b"), now=NOW)["why"]
    assert (why["nodes"], why["preemption"]) == ([], None)
    assert 'user "tenant" cannot list gpudevices' in why["not_shown"]


def a_gated_mirror(**container: Any) -> Mirror:
    """A pod behind the gate waits for claim `b`, and has a volume."""
    mirror = a_mirror(nodes=1, claims=[a_waiter("b", memory="4Gi")], config=GATE)
    pod = a_pod(
        "pod-1",
        containers=[a_container(limits={"nvidia.com/gpu": 1}, **container)],
        annotations={ANNOTATION_CLAIM: "b", ANNOTATION_SLOTS_ADDED: "main"},
        **using("data"),
    )
    gates = [{"name": SCHEDULING_GATE}]
    pod = pod.model_copy(update={"spec": pod.spec.model_copy(update={"scheduling_gates": gates})})
    mirror.observe(events.PodObserved(pod))
    return mirror


def why_of(mirror: Mirror) -> Any:
    return views.claim(mirror, ADMIN, ClaimKey("default", "b"), now=NOW)["why"]


def test_the_volumes_of_a_pod_behind_the_gate_are_judged() -> None:
    mirror = a_gated_mirror()
    assert why_of(mirror)["now"] == "PersistentVolumeClaim data does not exist yet"
    for obj in (a_volume("v", nodes=["away"]), a_volume_claim(volume="v")):
        mirror.observe(events.StorageObserved(read(obj)))
    why = why_of(mirror)
    assert [node["verdict"] for node in why["nodes"]] == ["1/1 NodeVolumeMismatch"]
    assert why["not_judged"] == ""


def test_volumes_that_the_page_has_not_read_are_left_out_and_the_rest_is_judged() -> None:
    mirror = a_gated_mirror(requests={"nvidia.com/gpu": 1, "cpu": "64"})
    mirror.unread = Unread(volumes="this page has not listed csinodes")
    why = why_of(mirror)
    assert why["not_judged"] == "volumes are not judged: this page has not listed csinodes"
    assert [node["verdict"] for node in why["nodes"]] == ["1/1 NodeInsufficientResources"]


def test_a_claim_that_cannot_be_read_is_listed_without_an_explanation() -> None:
    mirror = a_mirror()
    metadata = {"namespace": "mine", "name": "odd", "uid": "u", "resourceVersion": "1"}
    mirror.observe(events.ClaimUnreadable({"metadata": metadata}))
    found = views.claim(mirror, TENANT, ClaimKey("mine", "odd"), now=NOW)
    assert (found["state"], found["why"]) == ("Unreadable", None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"page": "0"}, 'page: Invalid value: "0": must be a number, 1 to 1000000'),
        ({"page": "١"}, "page: Invalid value"),
        ({"size": "201"}, "size: Invalid value"),
        ({"sort": "colour"}, 'sort: Unsupported value: "colour": supported values: "name"'),
        ({"text": "x" * 254}, "text: Too many"),
        ({"namespaces": "x"}, "namespaces: Forbidden"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        views.Query.read(given, views.NODE_ORDERS)
    assert str(refused.value).startswith(said)


def test_a_claim_that_waits_shows_its_pod_and_one_that_is_deleted_says_so() -> None:
    waiter, going = a_waiter("waits"), a_holder("goes")
    waiter = waiter.model_copy(update={"status": waiter.status.model_copy(update={"pod": "p"})})
    metadata = {"deletion_timestamp": "2026-01-01T00:00:00Z"}
    going = going.model_copy(update={"metadata": going.metadata.model_copy(update=metadata)})
    shown = claims(a_mirror(claims=[waiter, going]))["items"]
    assert {each["name"]: (each["state"], each["pod"]) for each in shown} == {
        "waits": ("Waiting", "p"),
        "goes": ("Terminating", "pod-of-goes"),
    }


def test_a_claim_that_waits_has_the_sentence_of_its_event() -> None:
    waiter = a_waiter("late", message="asked 81,920 MiB; the largest device has 16,384 MiB")
    mirror = a_mirror(claims=[waiter, a_holder("served")])
    found = views.claims(mirror, ADMIN, views.Query())["items"]
    sentences = {row["name"]: row["message"] for row in found}
    assert sentences == {
        "late": "asked 81,920 MiB; the largest device has 16,384 MiB", "served": ""
    }  # fmt: skip


def test_claims_are_shown_by_the_reason_for_which_they_wait() -> None:
    waiters = [a_waiter("a"), a_waiter("b", reason="CardTypeMismatch")]
    mirror = a_mirror(claims=waiters)
    found = views.claims(mirror, ADMIN, views.Query(reason="CardTypeMismatch"))
    assert [row["name"] for row in found["items"]] == ["b"]


@pytest.mark.parametrize(
    ("sight", "reads"),
    [
        (Sight("nobody"), False),
        (Sight("tenant", namespaces=frozenset({"default"})), True),
        (Sight("admin", everywhere=True), True),
    ],
)
def test_the_fleet_says_if_claims_may_be_read_at_all(sight: Sight, reads: bool) -> None:
    assert views.fleet(a_mirror(claims=[a_waiter("a")]), sight)["readsClaims"] is reads


# What is used, beside what is allocated.


def a_used_mirror() -> Mirror:
    """Claims `a` (mine) and `b` (theirs) share GPU-0-0, `c` (mine) has GPU-0-1 alone."""
    mirror = a_mirror(
        claims=[
            a_holder("a", namespace="mine"),
            a_holder("b", namespace="theirs"),
            a_holder("c", namespace="mine", uuid="GPU-0-1"),
        ]
    )
    mirror.take_usage(
        FleetUsage(
            devices={"GPU-0-0": Used(3000, 60.0), "GPU-0-1": Used(500, 5.0)},
            claims={
                ClaimKey("mine", "a"): Used(1000, 20.0),
                ClaimKey("theirs", "b"): Used(2000, None),
            },
        )
    )
    return mirror


def test_use_is_shown_beside_what_is_allocated_and_unknown_is_not_zero() -> None:
    mirror = a_used_mirror()
    first, second = views.node(mirror, ADMIN, "node-0")["items"]
    assert first["used"] == {"memoryMiB": 3000, "cores": 60.0}
    assert [each["used"] for each in first["holders"]] == [
        {"memoryMiB": 1000, "cores": 20.0},
        {"memoryMiB": 2000, "cores": None},
    ]
    assert [each["used"] for each in second["holders"]] == [None]
    here, there = nodes(mirror)["items"]
    assert here["used"] == {"memoryMiB": 3500, "cores": 65.0, "known": 2, "of": 2}
    assert there["used"] is None
    found = views.fleet(mirror, ADMIN)
    assert found["devices"]["used"] == {"memoryMiB": 3500, "cores": 65.0, "known": 2, "of": 4}
    assert {each["name"]: each["used"] for each in found["namespaces"]["items"]} == {
        "mine": {"memoryMiB": 1000, "cores": 20.0, "known": 1, "of": 2},
        "theirs": {"memoryMiB": 2000, "cores": None, "known": 1, "of": 1},
    }
    assert {each["name"]: each["used"] for each in claims(mirror)["items"]} == {
        "a": {"memoryMiB": 1000, "cores": 20.0},
        "b": {"memoryMiB": 2000, "cores": None},
        "c": None,
    }
    assert found["usage"] == {"problem": "", "hidden": False}


def test_a_tenant_cannot_compute_the_use_of_other_namespaces() -> None:
    """The use of a device less that of his own claims would be that of the others."""
    mirror = a_used_mirror()
    first, second = views.node(mirror, TENANT, "node-0")["items"]
    assert (first["used"], second["used"]) == (None, {"memoryMiB": 500, "cores": 5.0})
    assert [each["used"] for each in first["holders"]] == [{"memoryMiB": 1000, "cores": 20.0}]
    assert "used" not in first["others"]
    alone = {"memoryMiB": 500, "cores": 5.0, "known": 1}
    assert nodes(mirror, TENANT)["items"][0]["used"] == {**alone, "of": 2}
    found = views.fleet(mirror, TENANT)
    assert found["devices"]["used"] == {**alone, "of": 4}
    assert "used" not in found["others"]
    assert [each["name"] for each in found["namespaces"]["items"]] == ["mine"]
    assert found["usage"]["hidden"] is True


def test_claims_that_hold_nothing_do_not_count_as_unknown() -> None:
    mirror = a_mirror(claims=[a_holder("a"), a_waiter("b")])
    mirror.take_usage(FleetUsage(claims={ClaimKey("default", "a"): Used(1, 0.0)}))
    (row,) = views.fleet(mirror, ADMIN)["namespaces"]["items"]
    assert row["used"] == {"memoryMiB": 1, "cores": 0.0, "known": 1, "of": 1}


def test_the_reason_for_which_use_is_unknown_is_told() -> None:
    mirror = a_mirror(claims=[a_holder("a")])
    mirror.take_usage(FleetUsage(problem="Prometheus does not answer"))
    for found in (
        views.fleet(mirror, ADMIN),
        nodes(mirror),
        views.node(mirror, ADMIN, "node-0"),
        claims(mirror),
        views.claim(mirror, ADMIN, ClaimKey("default", "a"), now=NOW),
    ):
        assert found["usage"]["problem"] == "Prometheus does not answer"


# Idle claims.


def idle(mirror: Mirror, sight: Sight = ADMIN, **given: str) -> Any:
    return views.idle(mirror, sight, views.Query.read(given, views.IDLE_ORDERS))


def an_idle_mirror() -> Mirror:
    """Holders of 25 % each, but for `large`; their peaks are on both sides of a twentieth."""
    peaks = {"quiet": 1.2, "busy": 1.3, "odd": 0.0, "large": 0.5}
    mirror = a_mirror(
        claims=[
            a_holder("quiet", namespace="mine"),
            a_holder("busy", namespace="mine"),
            a_holder("odd", namespace="mine", uuid="GPU-0-1"),
            a_holder("young", namespace="mine", uuid="GPU-0-1"),
            a_holder("large", namespace="theirs", uuid="GPU-1-0", node="node-1", memory_mib=8192),
            a_waiter("waits", namespace="mine"),
        ]
    )
    keys = {name: ClaimKey("theirs" if name == "large" else "mine", name) for name in peaks}
    used = {key: Used(100, None if name == "odd" else 0.0) for name, key in keys.items()}
    mirror.take_usage(
        FleetUsage(claims=used, peaks={key: peaks[name] for name, key in keys.items()})
    )
    return mirror


def test_holders_that_used_less_than_a_twentieth_of_their_share_for_an_hour_are_idle() -> None:
    """One that has not run for an hour, and one whose compute is unknown in part, are not."""
    mirror = an_idle_mirror()
    found = idle(mirror)
    assert [(each["name"], each["peak"]) for each in found["items"]] == [
        ("large", 0.5),
        ("quiet", 1.2),
    ]
    assert (found["known"], found["memoryMiB"]) == (True, 12_288)
    assert views.fleet(mirror, ADMIN)["idle"] == {"claims": 2, "memoryMiB": 12_288}


def test_a_tenant_sees_his_own_idle_claims() -> None:
    mirror = an_idle_mirror()
    assert [each["name"] for each in idle(mirror, TENANT)["items"]] == ["quiet"]
    assert views.fleet(mirror, TENANT)["idle"] == {"claims": 1, "memoryMiB": 4096}


def test_without_peaks_idle_claims_are_unknown_and_not_none() -> None:
    mirror = a_mirror(claims=[a_holder("a")])
    assert idle(mirror)["known"] is False
    assert views.fleet(mirror, ADMIN)["idle"] is None


# Search.


def found_for(mirror: Mirror, text: str, sight: Sight = ADMIN) -> dict[str, list[str]]:
    found = views.search(mirror, sight, views.Query.read({"text": text}, ()))
    return {
        kind: [each.get("uuid") or each["name"] for each in found[kind]["items"]]
        for kind in ("claims", "nodes", "devices")
    }


def test_a_search_finds_claims_by_their_pods_too_nodes_and_devices() -> None:
    mirror = a_mirror(claims=[a_holder("a", pod="Train-7"), a_waiter("train-b", namespace="mine")])
    assert found_for(mirror, "train")["claims"] == ["a", "train-b"]
    assert found_for(mirror, "MINE/")["claims"] == ["train-b"]
    assert found_for(mirror, "node-1") == {"claims": [], "nodes": ["node-1"], "devices": []}
    assert found_for(mirror, "gpu-1-0")["devices"] == ["GPU-1-0"]
    assert found_for(mirror, " ") == {"claims": [], "nodes": [], "devices": []}


def test_a_search_finds_what_the_visitor_may_list_alone() -> None:
    mirror = a_mirror(claims=[a_holder("a", namespace="mine"), a_holder("ab", namespace="theirs")])
    assert found_for(mirror, "a", TENANT)["claims"] == ["a"]
    stranger = Sight("stranger", namespaces=frozenset({"mine"}))
    assert found_for(mirror, "node", stranger) == {"claims": [], "nodes": [], "devices": []}
    found = views.search(mirror, stranger, views.Query.read({"text": "x"}, ()))
    assert (found["readsDevices"], found["readsClaims"]) == (False, True)
    assert found["claims"]["total"] == 0


def test_a_search_shows_the_first_of_many_and_counts_all() -> None:
    mirror = a_mirror(claims=[a_waiter(f"w{at:02d}") for at in range(25)])
    found = views.search(mirror, ADMIN, views.Query.read({"text": "w"}, ()))["claims"]
    assert (found["total"], [each["name"] for each in found["items"]]) == (
        25, [f"w{at:02d}" for at in range(20)]
    )  # fmt: skip
