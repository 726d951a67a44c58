"""Gate mode: the pods of a group get past their gates together, or none of them does.

The checks read only the objects of the API server. Every test checks these invariants after each
step (`Town.settle`), and `tests/property/test_gate_group_states.py` checks them for any order of
events:

* the number of a group's pods past their gates is never between zero and its minimum;
* a group behind its gates holds no device for longer than `START_S`.
"""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from builders import GATE, ROOM, a_container, a_device, a_node, a_pod, a_pod_group
from memory_api import MemoryApi
from replica import Replica
from vgpu_api.config import ClusterConfig, SchedulingConfig
from vgpu_api.config.cluster import PreemptionConfig
from vgpu_api.core import Pod
from vgpu_api.core.pod import ResourceRequirements
from vgpu_api.names import (
    ANNOTATION_GROUP,
    ANNOTATION_GROUP_MIN,
    COSCHEDULING_FORMER_GROUP,
    COSCHEDULING_GROUP,
    SCHEDULING_GATE,
    VOLCANO_GROUP,
)
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import Forbidden
from vgpu_operator.dialects.pod_groups import GroupKind
from vgpu_operator.engine import events
from vgpu_operator.engine.observability.claim_metrics import ClaimsCollector
from vgpu_operator.engine.scheduling.gate_groups import START_S

WHOLE = {"nvidia.com/gpu": 1}
PREEMPTING = ClusterConfig(
    scheduling=SchedulingConfig(mode="Gate", preemption=PreemptionConfig(enabled=True))
)


def part(mib: int) -> dict[str, int]:
    return {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}


class Town:
    """A cluster in Gate mode with nodes of one device each."""

    def __init__(
        self,
        nodes: int = 2,
        *,
        api: MemoryApi | None = None,
        config: ClusterConfig = GATE,
        **room: str,
    ) -> None:
        self.replica = Replica(api, config=config)
        self.api = self.replica.api
        self.least: dict[str, int] = {}
        for number in range(nodes):
            node = f"node-{number}"
            self.replica.news.node_changed(a_node(node, allocatable={**ROOM, **room}))
            self.replica.news.device_changed(a_device(uuid=f"GPU-{number}", node=node))

    def successor(self) -> Town:
        """Return another replica that has read everything from the API server."""
        self.replica.leading = False
        town = Town(0, api=self.api)
        for node in self.replica.cache.nodes.values():
            town.replica.news.node_changed(node)
            for device in self.replica.ledger.devices(node.metadata.name):
                town.replica.news.device_changed(device)
        for raw in self._all(VGPU_CLAIMS.plural):
            town.replica.news.claim_changed(VGPUClaim.read(raw))
        for raw in self._all(PODS.plural):
            town.replica.news.pod_changed(Pod.model_validate(raw))
        town.replica.time, town.least = self.replica.time, self.least
        town.replica.engine.lead()
        return town

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return [obj for place, obj in sorted(self.api.objects.items()) if place[0] == kind]

    # Actions of users.

    def pod(
        self, name: str, limits: dict[str, int] = WHOLE, *, cpu: str = "100m", **fields: Any
    ) -> Pod:
        """Create a pod as the webhook leaves it."""
        requests = {"nvidia.com/gpu": 1, "cpu": cpu}
        resources = ResourceRequirements(limits=dict(limits), requests=dict(requests))
        container = a_container().model_copy(update={"resources": resources})
        gates = fields.pop("gates", [{"name": SCHEDULING_GATE}])
        fields.setdefault("scheduler", "default-scheduler")
        pod = a_pod(name, containers=[container], **fields)
        spec = pod.spec.model_copy(update={"scheduling_gates": gates})
        return self.put(pod.model_copy(update={"spec": spec}))

    def member(self, name: str, least: int, *, group: str = "", **fields: Any) -> Pod:
        """Create a pod of a group by our annotations; its name up to the hyphen is the group."""
        group = group or name.rsplit("-", 1)[0]
        self.least[group] = least
        words = {ANNOTATION_GROUP: group, ANNOTATION_GROUP_MIN: str(least)}
        return self.pod(name, annotations=words, **fields)

    def gang(self, group: str, count: int, least: int = 0, **fields: Any) -> list[Pod]:
        return [
            self.member(f"{group}-{number}", least or count, **fields) for number in range(count)
        ]

    def put(self, pod: Pod) -> Pod:
        stored = Pod.model_validate(self.api.put(PODS, pod.to_wire()))
        self.replica.news.pod_changed(stored)
        return stored

    def bind(self, *names: str) -> None:
        """Let kube-scheduler bind pods to the nodes of their affinities."""
        for name in names:
            raw = Pod.model_validate(self.stored(name)).to_wire()
            raw["spec"]["nodeName"] = self.tied(name)
            raw["status"]["phase"] = "Running"
            self.put(Pod.model_validate(raw))

    def end(self, name: str) -> None:
        """Delete the pod and its claim, which the agent has released."""
        uid = self.stored(name)["metadata"]["uid"]
        self.api.vanish(PODS, name)
        self.replica.news.pod_gone(uid)
        for raw in self._all(VGPU_CLAIMS.plural):
            if any(owner["uid"] == uid for owner in raw["metadata"].get("ownerReferences", ())):
                metadata = raw["metadata"]
                self.api.vanish(VGPU_CLAIMS, metadata["name"])
                self.replica.news.claim_gone(("default", metadata["name"]), metadata["uid"])

    # The state on the API server.

    async def settle(self, seconds: float = 0.0) -> None:
        self.replica.time += seconds
        await self.replica.settle()
        self.check()

    def check(self) -> None:
        """Check that no group is partly past its gates."""
        for group, least in self.least.items():
            of_it = [
                pod
                for pod in self._all(PODS.plural)
                if pod["metadata"].get("annotations", {}).get(ANNOTATION_GROUP) == group
            ]
            lifted = [p for p in of_it if not p["spec"].get("schedulingGates")]
            assert len(lifted) == 0 or len(lifted) >= least, group

    def stored(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects[(PODS.plural, "default", name)]
        return found

    def lifted(self) -> list[str]:
        """Return the pods past their gates, by name."""
        return [
            pod["metadata"]["name"]
            for pod in self._all(PODS.plural)
            if not pod["spec"].get("schedulingGates")
        ]

    def tied(self, name: str) -> str:
        required = self.stored(name)["spec"]["affinity"]["nodeAffinity"]
        (terms,) = required.values()
        node: str = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        return node

    def allocated(self) -> list[str]:
        """Return the pods with devices, by name."""
        return sorted(
            raw["status"]["reservedFor"]["podName"]
            for raw in self._all(VGPU_CLAIMS.plural)
            if raw.get("status", {}).get("allocation")
        )

    def why(self, pod: Pod) -> tuple[str, str]:
        """Return the reason and the message on the pod's claim."""
        condition = self.replica.claim_of(pod).status.conditions[0]
        return condition.reason, condition.message


async def test_a_group_that_waits_is_counted_until_it_starts() -> None:
    town = Town(2)
    registry = CollectorRegistry()
    registry.register(ClaimsCollector(town.replica.engine))

    def waiting() -> float | None:
        return registry.get_sample_value("vgpu_gangs_waiting", {"namespace": "default"})

    town.member("a-0", 2)
    await town.settle()
    assert waiting() == 1
    town.member("a-1", 2)
    await town.settle()
    assert waiting() is None


async def test_a_group_waits_until_all_its_pods_exist_and_starts_as_a_whole() -> None:
    town = Town(2)
    first = town.member("a-0", 2)
    await town.replica.told()
    assert (town.lifted(), town.allocated()) == ([], [])
    assert town.why(first) == (
        "GroupIncomplete",
        "1 of the 2 pods of group a that must start together exist",
    )
    town.member("a-1", 2)
    await town.settle()
    assert town.lifted() == town.allocated() == ["a-0", "a-1"]
    assert {town.tied("a-0"), town.tied("a-1")} == {"node-0", "node-1"}


async def test_all_claims_are_written_before_the_first_gate_is_lifted() -> None:
    town = Town(3)
    town.gang("a", 3)
    await town.settle()
    verbs = [verb for verb, _ in town.api.log]
    assert verbs[-3:] == ["patch object"] * 3
    assert "patch object" not in verbs[:-3]


async def test_a_group_without_room_holds_nothing_and_a_pod_beside_it_runs() -> None:
    town = Town(2)
    pods = town.gang("a", 3)
    await town.settle()
    town.pod("lone")
    await town.settle()
    assert town.lifted() == town.allocated() == ["lone"]
    await town.replica.told()
    for pod in pods:
        reason, text = town.why(pod)
        assert reason == "Impossible"
        assert "2 of 3 pods of group a found a place, and a-2 did not" in text
    assert "asked 3 whole devices for 3 pods together; all devices of the cluster have 2" in text


async def test_a_group_starts_when_enough_becomes_free() -> None:
    town = Town(2)
    town.pod("lone")
    await town.settle()
    town.bind("lone")
    pods = town.gang("a", 2)
    await town.replica.told()
    reason, text = town.why(pods[0])
    assert (reason, town.allocated()) == ("GroupIncomplete", ["lone"])
    assert text.startswith("1 of 2 pods of group a found a place, and a-1 did not (Card")
    town.end("lone")
    await town.settle(1.0)
    assert town.lifted() == ["a-0", "a-1"]


async def test_of_two_groups_with_room_for_one_each_starts_whole_in_its_turn() -> None:
    town = Town(2)
    for number in range(2):  # as two controllers create them
        town.member(f"a-{number}", 2)
        town.member(f"b-{number}", 2)
    await town.settle()
    assert town.lifted() == town.allocated() == ["a-0", "a-1"]
    town.bind("a-0", "a-1")
    town.least["a"] = 1  # its controller deletes a pod that has ended
    town.end("a-0")
    await town.settle(1.0)
    assert town.lifted() == ["a-1"]
    town.end("a-1")
    await town.settle(1.0)
    assert town.lifted() == ["b-0", "b-1"]


async def test_pods_beyond_the_minimum_start_one_by_one() -> None:
    town = Town(3)
    town.gang("a", 5, least=2)
    await town.settle()
    assert town.lifted() == ["a-0", "a-1", "a-2"]
    town.bind(*town.lifted())
    await town.settle(1.0)
    town.end("a-0")
    await town.settle(1.0)
    assert town.lifted() == ["a-1", "a-2", "a-3"]


async def test_a_pod_that_replaces_one_of_a_running_group_starts_alone() -> None:
    town = Town(2)
    town.gang("a", 2)
    await town.settle()
    town.bind("a-0", "a-1")
    town.end("a-0")
    # Only a-1 is left: the controller deletes a-0, which has ended. So check() must accept one pod.
    town.least["a"] = 1
    town.member("a-2", 2, group="a")
    town.least["a"] = 1
    await town.settle(1.0)
    assert town.lifted() == ["a-1", "a-2"]


async def test_pods_of_a_group_that_has_ended_wait_for_each_other_again() -> None:
    town = Town(3)
    town.gang("a", 4, least=3)
    await town.settle()
    town.bind("a-0", "a-1", "a-2")
    await town.settle(1.0)  # a-3 may start alone now
    for name in ("a-0", "a-1", "a-2"):
        town.end(name)
    await town.settle(1.0)
    assert town.lifted() == town.allocated() == []


async def test_a_pod_without_gpus_counts_for_its_group() -> None:
    town = Town(2)
    town.member("a-0", 2)
    await town.settle()
    assert town.lifted() == []
    words = {ANNOTATION_GROUP: "a", ANNOTATION_GROUP_MIN: "2"}
    town.put(a_pod("launcher", annotations=words))
    await town.settle()
    assert town.allocated() == ["a-0"]


async def test_cpu_counts_for_all_pods_of_a_group_together() -> None:
    """A node has enough devices for both pods, but not enough CPU."""
    town = Town(2, cpu="3")
    town.gang("a", 2, limits=part(1024), cpu="2")
    await town.settle()
    assert {town.tied("a-0"), town.tied("a-1")} == {"node-0", "node-1"}
    town.gang("b", 2, limits=part(1024), cpu="1")
    await town.settle()
    assert {town.tied("b-0"), town.tied("b-1")} == {"node-0", "node-1"}
    town.gang("c", 2, limits=part(1024), cpu="1")
    await town.settle()
    assert "c-0" not in town.lifted()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"priority": 7}, "1 have default-scheduler and 7 and 2"),
        ({"scheduler": "other"}, "1 have other and 0 and 2"),
        ({"least": 3}, "1 have default-scheduler and 0 and 3"),
    ],
)
async def test_pods_that_disagree_hold_their_group_back_until_they_agree(
    fields: dict[str, Any], text: str
) -> None:
    town = Town(3)
    town.member("a-0", 2)
    odd = town.member("a-1", **{"least": 2, "priority": 0, **fields})
    last = town.member("a-2", 2)
    town.least["a"] = 2
    await town.replica.told()
    assert (town.lifted(), town.allocated()) == ([], [])
    reason, said = town.why(last)
    assert reason == "GroupMismatch"
    assert f"2 have default-scheduler and 0 and 2, {text}" in said
    town.end(odd.metadata.name)
    await town.settle(1.0)
    assert town.lifted() == ["a-0", "a-2"]


async def test_a_pod_behind_another_gate_keeps_its_group_waiting_with_a_reason() -> None:
    town = Town(2)
    first = town.member("a-0", 2)
    held = town.member("a-1", 2, gates=[{"name": "example.com/quota"}, {"name": SCHEDULING_GATE}])
    await town.replica.told()
    assert town.allocated() == []
    reason, text = town.why(first)
    assert reason == "GroupIncomplete"
    assert text == ("group a waits for a-1 (it has other scheduling gates); 2 must start together")
    raw = Pod.model_validate(town.stored("a-1")).to_wire()
    raw["spec"]["schedulingGates"] = [{"name": SCHEDULING_GATE}]
    town.put(Pod.model_validate(raw))
    await town.settle(1.0)
    assert town.lifted() == ["a-0", held.metadata.name]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            {ANNOTATION_GROUP: "a"},
            f"metadata.annotations[{ANNOTATION_GROUP_MIN}]: Required value: a whole number from 1",
        ),
        (
            {ANNOTATION_GROUP: "a", ANNOTATION_GROUP_MIN: "0"},
            f'metadata.annotations[{ANNOTATION_GROUP_MIN}]: Invalid value: "0": must be a whole',
        ),
    ],
)
async def test_a_pod_whose_group_cannot_be_read_gets_nothing_and_the_field_as_reason(
    words: dict[str, str], text: str
) -> None:
    town = Town(1)
    pod = town.pod("odd", annotations=words)
    await town.replica.told()
    assert (town.lifted(), town.allocated()) == ([], [])
    assert town.replica.state.pods.blocked[pod.metadata.uid].message.startswith(text)


async def test_pods_of_a_former_run_disagree_with_nobody() -> None:
    town = Town(2)
    town.gang("a", 2, priority=5)
    await town.settle()
    for name in ("a-0", "a-1"):
        raw = Pod.model_validate(town.stored(name)).to_wire()
        raw["spec"]["nodeName"], raw["status"]["phase"] = town.tied(name), "Succeeded"
        town.put(Pod.model_validate(raw))
    for raw in town._all(VGPU_CLAIMS.plural):
        town.api.vanish(VGPU_CLAIMS, raw["metadata"]["name"])
        metadata = raw["metadata"]
        town.replica.news.claim_gone(("default", metadata["name"]), metadata["uid"])
    late = town.member("a-2", 2)
    town.least.clear()
    await town.replica.told()
    assert town.why(late)[1] == "1 of the 2 pods of group a that must start together exist"
    town.member("a-3", 2)
    await town.settle(1.0)
    assert {"a-2", "a-3"} <= set(town.lifted())


async def test_devices_are_kept_for_a_whole_group_that_has_waited_for_long() -> None:
    town = Town(2)
    for name in ("holder-0", "holder-1"):
        town.pod(name, limits=part(9000))
    await town.settle()
    town.bind("holder-0", "holder-1")
    town.gang("a", 2)
    for _ in range(3):
        await town.settle(61.0)
    town.end("holder-0")
    town.pod("small", limits=part(4096))
    await town.settle(1.0)
    assert town.allocated() == ["holder-1"]
    town.end("holder-1")
    await town.settle(1.0)
    assert town.lifted() == ["a-0", "a-1"]


async def test_no_devices_are_kept_for_a_group_that_lacks_pods() -> None:
    town = Town(1)
    town.pod("holder", limits=part(9000))
    await town.settle()
    town.bind("holder")
    town.member("a-0", 2)
    for _ in range(3):
        await town.settle(61.0)
    town.pod("small", limits=part(4096))
    await town.settle(1.0)
    assert town.allocated() == ["holder", "small"]


# Faults and changes during a start.


async def test_claims_that_are_not_all_written_in_time_are_given_back_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    town = Town(2)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(town.replica.recorder, "record", lambda _, **event: told.append(event))
    pods = town.gang("a", 2)
    bad = town.replica.cache.pod(pods[1].metadata.uid)
    assert bad is not None
    town.api.before = lambda verb, name: (
        Forbidden("no", status=403) if name == bad.claim.name and "patch" in verb else None
    )
    await town.settle()
    assert (town.lifted(), town.allocated()) == ([], ["a-0"])
    for _ in range(4):
        await town.settle(START_S / 4)
    assert (town.lifted(), town.allocated()) == ([], [])
    notes = {each["note"] for each in told if each["reason"] == "GroupIncomplete"}
    assert "group a gives its devices back: 1 of 2 claims were written within 10 s" in notes
    town.pod("lone")
    await town.settle()
    assert town.lifted() == ["lone"]


async def test_a_pod_that_goes_before_the_gates_are_lifted_gives_all_devices_back_at_once() -> None:
    town = Town(2)
    pods = town.gang("a", 2)
    town.api.gate.clear()  # the writes hang
    town.replica.submit()
    town.end("a-1")
    town.api.gate.set()
    await town.settle()
    await town.settle()
    assert (town.lifted(), town.allocated()) == ([], [])
    await town.replica.told()
    assert town.why(pods[0])[0] == "GroupIncomplete"


async def test_a_successor_finishes_a_group_whose_claims_were_written_in_part() -> None:
    town = Town(2)
    town.gang("a", 2)
    town.replica.submit()
    await town.replica.effector.drain()  # the claims exist, and the first one is allocated
    del town.api.objects[(VGPU_CLAIMS.plural, "default", claim_name(town, "a-1"))]
    successor = town.successor()
    assert successor.allocated() == ["a-0"]
    await successor.settle()
    assert successor.lifted() == successor.allocated() == ["a-0", "a-1"]


async def test_a_successor_undoes_a_group_whose_other_pod_finds_no_room_any_more() -> None:
    town = Town(2)
    town.gang("a", 2)
    town.replica.submit()
    await town.replica.effector.drain()
    del town.api.objects[(VGPU_CLAIMS.plural, "default", claim_name(town, "a-1"))]
    town.pod("lone", priority=5)  # it comes before the group
    successor = town.successor()
    assert successor.allocated() == ["a-0"]
    for _ in range(4):
        await successor.settle(START_S / 2)
    assert successor.lifted() == successor.allocated() == ["lone"]


async def test_a_successor_lifts_the_other_gates_of_a_group_that_was_lifted_in_part() -> None:
    town = Town(2)
    town.gang("a", 2)
    await town.settle()
    raw = Pod.model_validate(town.stored("a-1")).to_wire()  # as if its patch had not arrived
    raw["spec"]["schedulingGates"] = [{"name": SCHEDULING_GATE}]
    raw["spec"]["affinity"] = None
    town.api.put(PODS, raw)
    successor = town.successor()
    assert successor.lifted() == ["a-0"]
    await successor.settle()
    assert successor.lifted() == ["a-0", "a-1"]


async def test_once_the_gates_are_being_lifted_a_refused_patch_is_tried_again_without_end() -> None:
    town = Town(2)
    town.gang("a", 2)
    refused = Forbidden("no", status=403)
    town.api.before = lambda verb, name: (
        refused if (verb, name) == ("patch object", "a-1") else None
    )
    town.least.clear()  # only a-1 stays behind, which the operator cannot prevent
    for _ in range(10):
        await town.settle(START_S / 2)
    assert (town.lifted(), town.allocated()) == (["a-0"], ["a-0", "a-1"])
    town.api.before = lambda verb, name: None
    await town.settle(START_S)
    assert town.lifted() == ["a-0", "a-1"]


async def test_a_pod_that_goes_while_the_gates_are_lifted_does_not_keep_the_others_back() -> None:
    town = Town(3)
    town.gang("a", 3)
    refused = Forbidden("no", status=403)
    town.api.before = lambda verb, name: (
        refused if verb == "patch object" and name != "a-0" else None
    )
    town.least.clear()  # a user breaks the group
    await town.settle()
    assert town.lifted() == ["a-0"]
    town.end("a-2")
    town.api.before = lambda verb, name: None
    await town.settle(1.0)
    assert town.lifted() == ["a-0", "a-1"]


def claim_name(town: Town, name: str) -> str:
    known = town.replica.cache.pod(town.stored(name)["metadata"]["uid"])
    assert known is not None
    return known.claim.name


# Preemption.


async def evicted(town: Town) -> list[str]:
    """Return the pods that were evicted within ten seconds, by name."""
    for _ in range(20):
        await town.settle(0.5)
    return sorted(name for verb, name in town.api.log if verb == "evict")


async def test_less_important_pods_make_way_for_a_whole_group() -> None:
    town = Town(2, config=PREEMPTING)
    town.replica.engine.observe(events.BudgetsListed())
    for name in ("low-0", "low-1"):
        town.pod(name, priority=1)
    await town.settle()
    town.bind("low-0", "low-1")
    town.member("a-0", 2, priority=9)
    assert await evicted(town) == []  # the group has too few pods
    town.member("a-1", 2, priority=9)
    assert await evicted(town) == ["low-0", "low-1"]
    town.end("low-0")
    await town.settle(1.0)
    assert town.allocated() == ["low-1"]  # the free device is kept for the group and not allocated
    town.end("low-1")
    await town.settle(1.0)
    assert town.lifted() == ["a-0", "a-1"]


async def test_a_group_by_annotations_makes_way_as_a_whole() -> None:
    town = Town(2, config=PREEMPTING)
    town.replica.engine.observe(events.BudgetsListed())
    town.gang("a", 2, priority=1)
    await town.settle()
    town.bind("a-0", "a-1")
    town.pod("important", priority=9)
    assert await evicted(town) == ["a-0", "a-1"]


async def test_nobody_makes_way_for_pods_that_disagree() -> None:
    town = Town(2, config=PREEMPTING)
    town.replica.engine.observe(events.BudgetsListed())
    for name in ("low-0", "low-1"):
        town.pod(name, priority=1)
    await town.settle()
    town.bind("low-0", "low-1")
    town.member("a-0", 2, priority=9)
    town.member("a-1", 2, priority=8)
    assert await evicted(town) == []


# Groups of other APIs.


WORDS = [
    (GroupKind.KUBERNETES, {"group": "g"}),
    (GroupKind.VOLCANO, {"annotations": {VOLCANO_GROUP: "g"}}),
    (GroupKind.COSCHEDULING, {"labels": {COSCHEDULING_GROUP: "g"}}),
    (GroupKind.COSCHEDULING, {"labels": {COSCHEDULING_FORMER_GROUP: "g"}}),
]


@pytest.mark.parametrize(("kind", "words"), WORDS)
async def test_a_pod_group_of_any_api_says_how_many_start_together(
    kind: GroupKind, words: dict[str, Any]
) -> None:
    town = Town(3)
    first = town.pod("one", **words)
    await town.replica.told()
    assert town.allocated() == []
    assert town.why(first) == (
        "GroupIncomplete",
        f"no PodGroup g of {kind} says how many pods must start together",
    )
    town.replica.news.pod_group_changed(a_pod_group("g", least=2), kind)
    await town.settle(1.0)
    assert town.allocated() == []
    town.pod("two", **words)
    await town.settle(1.0)
    assert town.lifted() == ["one", "two"]


@pytest.mark.parametrize(("kind", "words"), WORDS[1:])
async def test_where_an_api_is_not_served_its_words_mean_nothing(
    kind: GroupKind, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    town, told = Town(3), list[dict[str, Any]]()
    monkeypatch.setattr(town.replica.recorder, "record", lambda _, **event: told.append(event))
    town.pod("early", **words)
    await town.settle()
    assert town.lifted() == []
    town.replica.news.pod_groups_not_served(kind)
    town.pod("late", **words)
    await town.settle(1.0)
    assert town.lifted() == ["early", "late"]
    notes = [each["note"] for each in told if each["reason"] == "GroupIgnored"]
    assert len(notes) == 2
    assert notes[0].startswith(f"the cluster serves no PodGroups of {kind}, so the pods of group g")


async def test_an_api_that_was_served_is_waited_for() -> None:
    town = Town(3)
    town.replica.news.pod_groups_listed(GroupKind.VOLCANO)
    town.replica.news.pod_groups_not_served(GroupKind.VOLCANO)
    town.pod("one", annotations={VOLCANO_GROUP: "g"})
    await town.settle(1.0)
    assert town.lifted() == []


async def test_a_smaller_minimum_lets_a_waiting_group_start() -> None:
    town = Town(2)
    town.replica.news.pod_group_changed(a_pod_group("g", least=3))
    for name in ("one", "two", "three"):
        town.pod(name, group="g")
    await town.settle()
    assert town.lifted() == []
    town.replica.news.pod_group_changed(a_pod_group("g", least=2))
    await town.settle(1.0)
    assert len(town.lifted()) == 2


async def test_pods_of_a_group_without_a_minimum_start_one_by_one() -> None:
    town = Town(1)
    town.replica.news.pod_group_changed(a_pod_group("g"))
    for name in ("one", "two"):
        town.pod(name, group="g")
    await town.settle()
    assert town.lifted() == ["one"]


# Cost.


async def test_a_group_that_is_planned_in_vain_wakes_nobody() -> None:
    town = Town(2)
    town.gang("a", 3)
    await town.settle()
    freed = town.replica.ledger.cursors
    for _ in range(4):
        await town.settle(1.0)
    assert town.replica.ledger.cursors == freed


async def test_groups_that_lack_pods_are_not_planned_when_something_becomes_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    town = Town(2)
    town.pod("lone")
    await town.settle()
    town.bind("lone")
    for number in range(20):
        town.member(f"g{number}-0", 3)
    await town.settle(1.0)
    planned: list[object] = []
    for name in ("schedule_due", "gate_groups"):
        monkeypatch.setattr(
            f"vgpu_operator.engine.scheduling.{name}.place",
            lambda *_, **__: planned.append(1),
        )
    town.end("lone")
    await town.settle(1.0)
    assert planned == []
