"""kube-scheduler tries a group with Filter calls, some of them simulations, then binds all at once.

Each test plays a cycle of kube-scheduler: it calls Filter for one pod after another, then either
drops all answers without notice and starts again, or sends a Bind for each pod at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from builders import a_container, a_pod, a_pod_group, use_of
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.errors import Invalid, Unreachable
from vgpu_operator.engine.observability.claim_metrics import ClaimsCollector
from vgpu_operator.engine.scheduling.groups import GATHER_S
from vgpu_operator.engine.scheduling.requeue import REQUEUE_EVERY_S
from vgpu_operator.engine.scheduling.reservation import OFFERED_S, PROVISIONAL_S
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest

WHOLE = {"nvidia.com/gpu": 1}
HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
FAILS = "GroupIncomplete"


class Scheduler:
    """A kube-scheduler that calls the extender."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    def filter(self, pod: Pod, *nodes: str) -> str:
        """Return the node that Filter leaves; empty if it leaves none."""
        asked = list(nodes or self.replica.cache.nodes)
        request = FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": asked})
        return next(iter(filter_nodes(self.replica.engine, request).node_names), "")

    def simulate(self, pods: Sequence[Pod]) -> list[str]:
        """Return the node of each pod, in the order of the calls."""
        return [self.filter(pod) for pod in pods]

    async def bind(self, pods: Sequence[Pod], nodes: Sequence[str]) -> list[str]:
        """Send all Binds at once; return their errors."""
        asked = [
            asyncio.create_task(self.replica.binder.bind(binding(pod, node)))
            for pod, node in zip(pods, nodes, strict=True)
        ]
        for _ in range(40):
            await asyncio.sleep(0)
        if not all(each.done() for each in asked):  # a Bind waits, so time passes
            self.replica.time += GATHER_S
            await self.replica.settle()
        return list(await asyncio.gather(*asked))


def binding(pod: Pod, node: str) -> BindRequest:
    return BindRequest(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, node)


def a_gang(
    replica: Replica,
    name: str,
    count: int,
    *,
    least: int | None = None,
    limits: dict[str, int] = WHOLE,
    **fields: int,
) -> list[Pod]:
    """Store a PodGroup with its pods."""
    replica.news.pod_group_changed(a_pod_group(name, least=least or count))
    return [replica.pod(f"{name}-{i}", group=name, limits=limits, **fields) for i in range(count)]


def bound(replica: Replica) -> set[str]:
    """Return the pods that got a Binding."""
    return {name for verb, name in replica.api.log if verb == "bind"}


def allocated(replica: Replica) -> int:
    """Return the claims with an allocation on the API server."""
    return sum(
        bool((claim.get("status") or {}).get("allocation"))
        for (plural, *_), claim in replica.api.objects.items()
        if plural == VGPU_CLAIMS.plural
    )


def used(replica: Replica) -> int:
    """Return the used memory in the ledger."""
    return sum(
        use_of(replica.ledger, device.status.uuid).memory_mib
        for node in replica.cache.nodes
        for device in replica.ledger.devices(node)
    )


@pytest.fixture
def two(replica: Replica) -> Replica:
    """Return a replica with two nodes, each with one device of 16 GiB."""
    for number in (1, 2):
        replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
    return replica


async def test_a_group_that_fits_starts_whole(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    assert sorted(nodes) == ["node-1", "node-2"]
    assert await scheduler.bind(pods, nodes) == ["", ""]
    await two.settle()
    assert bound(two) == {"a-0", "a-1"}
    assert allocated(two) == 2


async def test_a_filter_of_a_groups_pod_writes_and_counts_nothing(two: Replica) -> None:
    pods = a_gang(two, "a", 2)
    Scheduler(two).simulate(pods)
    await two.settle()
    assert not two.api.log
    assert used(two) == 0


async def test_simulations_in_any_order_find_the_same_room(two: Replica) -> None:
    """A simulation leaves nothing behind that affects the next, in any order of the pods."""
    pods, scheduler = a_gang(two, "a", 4, limits=HALF), Scheduler(two)
    for order in itertools.permutations(range(4)):
        nodes = scheduler.simulate([pods[i] for i in order])
        assert sorted(nodes) == ["node-1", "node-1", "node-2", "node-2"], order


async def test_a_second_filter_of_a_pod_begins_a_try_without_the_places_of_the_last(
    two: Replica,
) -> None:
    """kube-scheduler simulates another choice of nodes for the same pods."""
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    assert scheduler.filter(pods[0], "node-1") == "node-1"
    assert scheduler.filter(pods[1], "node-2") == "node-2"
    assert scheduler.filter(pods[0], "node-2") == "node-2"
    assert scheduler.filter(pods[1], "node-1") == "node-1"
    assert await scheduler.bind(pods, ["node-2", "node-1"]) == ["", ""]


async def test_a_group_without_room_leaves_nothing_behind_and_a_lone_pod_runs(
    two: Replica,
) -> None:
    """The last refusal ends the try, so its places are free at once."""
    pods, scheduler = a_gang(two, "a", 3, priority=10), Scheduler(two)
    for _ in range(3):
        assert scheduler.simulate(pods)[2] == ""
    lone = two.pod("lone", limits=WHOLE)
    assert scheduler.filter(lone) != ""
    await two.settle()
    assert allocated(two) == 1


async def test_a_less_important_pod_waits_for_an_unfinished_try_two_seconds_at_most(
    two: Replica,
) -> None:
    """The group's last pod never reaches Filter because CPU is short, which we do not learn."""
    pods, scheduler = a_gang(two, "a", 3, least=3, priority=10), Scheduler(two)
    scheduler.simulate(pods[:2])
    lone = two.pod("lone", limits=WHOLE)
    assert scheduler.filter(lone) == ""
    two.time += PROVISIONAL_S
    await two.settle()
    assert ("merge", "lone") in two.api.log  # the pod is woken
    assert scheduler.filter(lone) != ""


async def test_a_group_that_is_tried_without_end_holds_nothing_after_two_seconds(
    two: Replica,
) -> None:
    pods, scheduler = a_gang(two, "a", 3, least=3, priority=10), Scheduler(two)
    lone = two.pod("lone", limits=WHOLE)
    for _ in range(20):
        scheduler.simulate(pods[:2])
        two.time += PROVISIONAL_S / 16
        await two.settle()
    assert scheduler.filter(lone) != ""


async def test_a_pod_as_important_is_not_refused_for_a_try(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    lone = two.pod("lone", limits=WHOLE)
    assert scheduler.filter(lone) in nodes
    errors = await scheduler.bind(pods, nodes)
    assert all(error.startswith(FAILS) for error in errors)
    await two.settle()
    assert not bound(two)
    assert allocated(two) == 1


async def test_two_groups_that_want_the_same_room_do_not_get_halves(two: Replica) -> None:
    a, b, scheduler = a_gang(two, "a", 2), a_gang(two, "b", 2), Scheduler(two)
    of_a, of_b = scheduler.simulate(a), scheduler.simulate(b)
    errors = await asyncio.gather(scheduler.bind(b, of_b), scheduler.bind(a, of_a))
    await two.settle()
    assert bound(two) in ({"a-0", "a-1"}, {"b-0", "b-1"})
    assert sorted(sum(error != "" for error in of_one) for of_one in errors) == [0, 2]
    assert allocated(two) == 2


async def test_binds_in_any_order_pass_together(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    assert await scheduler.bind(pods[::-1], nodes[::-1]) == ["", ""]


async def test_a_bind_that_never_comes_fails_the_others_before_any_binding(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    (error,) = await scheduler.bind(pods[:1], nodes[:1])
    assert error.startswith(FAILS)
    assert "1 of 2" in error
    await two.settle()
    assert not bound(two)
    assert allocated(two) == 0
    assert used(two) == 0


async def test_the_last_bind_of_a_failed_try_fails_like_the_others(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    (first,) = await scheduler.bind(pods[:1], nodes[:1])
    (late,) = await scheduler.bind(pods[1:], nodes[1:])
    assert late == first
    nodes = scheduler.simulate(pods)
    assert await scheduler.bind(pods, nodes) == ["", ""]  # nothing of this try is left for the next


async def test_a_member_deleted_between_filter_and_bind_fails_the_others(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    two.api.vanish(PODS, "a-1")
    two.news.pod_gone("uid-of-a-1")
    before = two.time
    (error,) = await scheduler.bind(pods[:1], nodes[:1])
    assert error.startswith(FAILS)
    assert two.time == before  # no Bind waits for one that cannot come
    await two.settle()
    assert not bound(two)
    assert used(two) == 0


async def test_a_member_deleted_while_the_first_bind_waits_fails_it_at_once(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    first = asyncio.create_task(two.binder.bind(binding(pods[0], nodes[0])))
    await two.settle()
    assert not first.done()
    two.api.vanish(PODS, "a-1")
    two.news.pod_gone("uid-of-a-1")
    await two.settle()
    assert (await first).startswith(FAILS)
    assert not bound(two)


async def test_pods_beyond_the_minimum_bind_alone(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 3, least=2, limits=HALF), Scheduler(two)
    nodes = scheduler.simulate(pods[:2])
    assert await scheduler.bind(pods[:2], nodes) == ["", ""]
    node = scheduler.filter(pods[2])
    assert await scheduler.bind(pods[2:], [node]) == [""]
    assert bound(two) == {"a-0", "a-1", "a-2"}


async def test_a_group_starts_with_its_minimum_where_not_all_fit(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 3, least=2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    assert nodes[2] == ""
    assert await scheduler.bind(pods[:2], nodes[:2]) == ["", ""]


async def test_what_is_reserved_for_a_pod_that_asks_for_no_bind_is_taken_back(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2, least=1), Scheduler(two)
    nodes = scheduler.simulate(pods)
    assert await scheduler.bind(pods[:1], nodes[:1]) == [""]
    two.time += GATHER_S
    await two.settle()
    assert bound(two) == {"a-0"}
    assert allocated(two) == 1
    assert used(two) == 16384


async def test_pods_without_gpus_count_for_the_minimum(two: Replica) -> None:
    """A launcher without a GPU belongs to the group, but never reaches Filter or Bind."""
    two.news.pod_group_changed(a_pod_group("a", least=3))
    two.news.pod_changed(a_pod("launcher", group="a", containers=[a_container()], admitted=False))
    pods = [two.pod(f"a-{i}", group="a", limits=WHOLE) for i in range(2)]
    scheduler = Scheduler(two)
    assert await scheduler.bind(pods, scheduler.simulate(pods)) == ["", ""]


async def test_a_claim_that_cannot_be_written_fails_all_binds(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    refused = Invalid("it violates a rule", status=422)
    two.api.before = lambda verb, name: (
        refused if verb.startswith("create") and name.startswith("a-1") else None
    )
    errors = await scheduler.bind(pods, nodes)
    assert all(errors)
    two.api.before = lambda verb, name: None
    await two.settle()
    two.time += PROVISIONAL_S
    await two.settle()
    assert not bound(two)


async def test_a_new_leader_gathers_binds_whose_filters_it_has_not_seen(two: Replica) -> None:
    pods = a_gang(two, "a", 2)
    assert await Scheduler(two).bind(pods, ["node-1", "node-2"]) == ["", ""]
    assert bound(two) == {"a-0", "a-1"}


async def test_a_new_leader_finishes_a_group_that_is_bound_in_part(two: Replica) -> None:
    """The leader ends between the two Bindings, and kube-scheduler retries the second pod."""
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    gone = Unreachable("the leader has ended")
    two.api.before = lambda verb, name: gone if verb == "bind" and name == "a-1" else None
    assert (await scheduler.bind(pods, nodes))[0] == ""
    two.api.before = lambda verb, name: None
    successor = Replica(two.api)
    for number in (1, 2):
        successor.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
    successor.news.pod_group_changed(a_pod_group("a", least=2))
    for pod in pods:
        successor.news.claim_changed(two.claim_of(pod))
        raw = two.api.objects[PODS.plural, "default", pod.metadata.name]
        successor.news.pod_changed(Pod.model_validate(raw))
    successor.engine.lead()
    await successor.settle()
    scheduler = Scheduler(successor)
    assert scheduler.filter(pods[1]) == nodes[1]
    assert await scheduler.bind(pods[1:], nodes[1:]) == [""]
    assert bound(successor) == {"a-0", "a-1"}


async def test_a_new_leader_undoes_a_group_of_which_nothing_is_bound(two: Replica) -> None:
    """The leader ends after the claims' writes, and kube-scheduler does not retry."""
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    two.api.before = lambda verb, name: Unreachable("it ends") if verb == "bind" else None
    assert all(await scheduler.bind(pods, nodes))
    two.api.before = lambda verb, name: None
    successor = Replica(two.api)
    for number in (1, 2):
        successor.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
    for pod in pods:
        successor.news.claim_changed(two.claim_of(pod))
        successor.news.pod_changed(pod)
    successor.engine.lead()
    await successor.settle()
    assert allocated(successor) == 2
    successor.time += OFFERED_S
    await successor.settle()
    assert allocated(successor) == 0
    assert used(successor) == 0


# Waking a group that waits.


def woken(replica: Replica) -> set[str]:
    """Return the pods requeued so far."""
    return {name for verb, name in replica.api.log if verb == "merge"}


async def ends(replica: Replica, pod: Pod) -> None:
    """Delete the pod and its claim."""
    claim = replica.claim_of(pod)
    replica.news.pod_gone(pod.metadata.uid)
    replica.api.vanish(VGPU_CLAIMS, claim.metadata.name)
    replica.news.claim_gone(("default", claim.metadata.name), claim.metadata.uid)
    await replica.settle()


async def test_a_waiting_group_is_woken_as_a_whole_and_only_once_all_of_it_fits(
    two: Replica,
) -> None:
    first, second = two.offered("x", limits=WHOLE), two.offered("y", limits=WHOLE)
    await two.settle()
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    assert scheduler.simulate(pods) == ["", ""]
    await two.settle()
    await ends(two, first)
    assert not woken(two)
    await ends(two, second)
    assert woken(two) == {"a-0", "a-1"}
    nodes = scheduler.simulate(pods)
    assert await scheduler.bind(pods, nodes) == ["", ""]


async def test_a_group_is_woken_when_the_room_of_its_other_pods_comes_later(two: Replica) -> None:
    """Its large pod finds room first, and later another node has room for its small pod."""
    two.device(uuid="GPU-3", node="node-3", memory_mib=4096)
    holders = [
        two.pod(name, limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib})
        for name, mib in (("x", 16384), ("y", 16384), ("z", 4096))
    ]
    scheduler = Scheduler(two)
    assert all(scheduler.simulate(holders))
    await two.settle()
    two.news.pod_group_changed(a_pod_group("a", least=3))
    sizes = (16384, 16384, 4096)
    pods = [
        two.pod(f"a-{i}", group="a", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib})
        for i, mib in enumerate(sizes)
    ]
    assert not any(scheduler.simulate(pods))
    await two.settle()
    for holder in holders[:2]:
        await ends(two, holder)
    assert not woken(two)
    await ends(two, holders[2])
    assert woken(two) == {"a-0", "a-1", "a-2"}


async def test_a_pod_whose_binding_was_refused_keeps_its_devices_when_its_group_is_woken(
    two: Replica,
) -> None:
    """If a place replaced its reservation, the allocation would stay in the claim for ever."""
    two.device(uuid="GPU-3", node="node-3", memory_mib=16384)
    holder = two.offered("x", limits=WHOLE)
    await two.settle()
    pods, scheduler = a_gang(two, "a", 3, least=2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    assert nodes[2] == ""
    refused = Invalid("no", status=422)
    two.api.before = lambda verb, name: refused if (verb, name) == ("bind", "a-1") else None
    assert (await scheduler.bind(pods[:2], nodes[:2]))[0] == ""
    two.api.before = lambda verb, name: None
    two.time += PROVISIONAL_S
    await two.settle()
    await ends(two, holder)
    assert woken(two) == {"a-2"}
    held = two.reservation(pods[1])
    assert held is not None
    assert held.node == nodes[1]
    for _ in range(8):
        two.time += OFFERED_S / 4
        await two.settle()
    assert allocated(two) == 1  # the pod did not come back


async def test_devices_on_a_node_that_is_not_offered_any_more_are_given_back_at_once(
    two: Replica,
) -> None:
    """If a place elsewhere hid the reservation, its devices would stay in use."""
    two.device(uuid="GPU-3", node="node-3", memory_mib=16384)
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = [scheduler.filter(pods[0], "node-1"), scheduler.filter(pods[1], "node-2")]
    refused = Invalid("no", status=422)
    two.api.before = lambda verb, name: refused if (verb, name) == ("bind", "a-1") else None
    assert (await scheduler.bind(pods, nodes))[0] == ""
    two.api.before = lambda verb, name: None
    before = two.time
    scheduler.filter(pods[1], "node-3")
    await two.settle()
    lone = two.pod("lone", limits=WHOLE)
    assert scheduler.filter(lone, "node-2") == "node-2"
    assert two.time == before
    assert woken(two) == {"a-1"}
    assert scheduler.filter(pods[1], "node-3") == "node-3"
    assert await scheduler.bind(pods[1:], ["node-3"]) == [""]


async def test_devices_that_a_former_leader_gave_are_given_back_if_their_node_is_not_offered(
    two: Replica,
) -> None:
    """Filter is called before the new leader has read the claim."""
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    nodes = scheduler.simulate(pods)
    two.api.before = lambda verb, name: Unreachable("it ends") if verb == "bind" else None
    assert all(await scheduler.bind(pods, nodes))
    two.api.before = lambda verb, name: None
    successor = Replica(two.api)
    for number in (1, 2, 3):
        successor.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
    successor.news.pod_group_changed(a_pod_group("a", least=2))
    for pod in pods:
        successor.news.claim_changed(two.claim_of(pod))
        successor.news.pod_changed(pod)
    successor.engine.lead()
    scheduler = Scheduler(successor)
    scheduler.filter(pods[0], "node-3")
    await successor.settle()
    assert allocated(successor) == 1


async def test_a_woken_group_that_does_not_come_holds_its_places_for_two_seconds(
    two: Replica,
) -> None:
    first, second = two.offered("x", limits=WHOLE), two.offered("y", limits=WHOLE)
    await two.settle()
    pods, scheduler = a_gang(two, "a", 2, priority=10), Scheduler(two)
    scheduler.simulate(pods)
    await two.settle()
    await ends(two, first)
    await ends(two, second)
    lone = two.pod("lone", limits=WHOLE)
    assert scheduler.filter(lone) == ""
    two.time += PROVISIONAL_S
    await two.settle()
    assert scheduler.filter(lone) != ""


async def test_of_groups_that_wait_only_those_that_fit_beside_each_other_are_woken(
    two: Replica,
) -> None:
    first, second = two.offered("x", limits=WHOLE), two.offered("y", limits=WHOLE)
    await two.settle()
    scheduler = Scheduler(two)
    for name in ("a", "b", "c"):
        scheduler.simulate(a_gang(two, name, 2))
    await two.settle()
    await ends(two, first)
    await ends(two, second)
    assert woken(two) == {"a-0", "a-1"}


async def test_a_group_refused_for_ever_costs_no_request(two: Replica) -> None:
    pods, scheduler = a_gang(two, "a", 3), Scheduler(two)
    for _ in range(10):
        scheduler.simulate(pods)
        two.time += 1.0
        await two.settle()
    assert not woken(two)


# What a waiting group shows.


def told_of(replica: Replica, pod: Pod) -> tuple[str, str]:
    """Return the reason and the message on the claim of a refused pod."""
    (condition,) = [
        each for each in replica.claim_of(pod).status.conditions if each.type == "Allocated"
    ]
    return condition.reason, condition.message


async def test_a_refused_claim_tells_how_many_of_the_group_fit(two: Replica) -> None:
    two.offered("x", limits=WHOLE)
    await two.settle()
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    scheduler.simulate(pods)
    await two.told()
    reason, text = told_of(two, pods[1])
    assert reason == "CardInsufficientMemory"
    assert (
        "1 of 2 pods of group a found a place, and a-1 did not (CardInsufficientMemory); 2 must"
        in text
    )


async def test_the_claim_tells_it_also_once_its_own_pod_alone_would_fit(two: Replica) -> None:
    two.offered("x", limits=HALF)
    await two.settle()
    pods, scheduler = a_gang(two, "a", 4, limits=HALF), Scheduler(two)
    scheduler.simulate(pods)
    two.time += PROVISIONAL_S
    await two.told()
    reason, text = told_of(two, pods[3])
    assert reason == FAILS
    assert text.startswith("3 of 4 pods of group a found a place, and a-3 did not")


@pytest.mark.parametrize(
    ("limits", "count", "text"),
    [
        (WHOLE, 3, "asked 3 whole devices for 3 pods together; all devices of the cluster have 2"),
        (HALF, 5, "asked 40,960 MiB for 5 pods together; all devices of the cluster have 32,768"),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1},
            21,
            "asked 21 slices for 21 pods together; all devices of the cluster have 20",
        ),
    ],
)
async def test_a_group_larger_than_the_cluster_is_impossible(
    two: Replica, limits: dict[str, int], count: int, text: str
) -> None:
    pods, scheduler = a_gang(two, "a", count, limits=limits), Scheduler(two)
    scheduler.simulate(pods)
    for _ in range(2):
        two.time += PROVISIONAL_S
        await two.told()
    reason, message = told_of(two, pods[-1])
    assert reason == "Impossible"
    assert text in message


async def test_waiting_groups_are_counted(two: Replica) -> None:
    registry = CollectorRegistry()
    registry.register(ClaimsCollector(two.engine))

    def waiting() -> float | None:
        return registry.get_sample_value("vgpu_gangs_waiting", {"namespace": "default"})

    pods, scheduler = a_gang(two, "a", 3, least=2), Scheduler(two)
    two.offered("x", limits=WHOLE)
    assert waiting() is None
    scheduler.simulate(pods)
    scheduler.simulate(a_gang(two, "b", 3))
    assert waiting() == 2
    two.news.pod_gone("uid-of-x")
    for pod in pods:
        two.news.pod_gone(pod.metadata.uid)
    assert waiting() == 1


async def test_pods_of_a_group_with_two_priorities_are_refused_until_they_have_one(
    two: Replica,
) -> None:
    pods, scheduler = a_gang(two, "a", 2), Scheduler(two)
    two.pod("odd", group="a", limits=WHOLE, priority=7)
    assert not any(scheduler.simulate(pods))
    await two.told()
    reason, text = told_of(two, pods[0])
    assert reason == "GroupMismatch"
    assert "2 have vgpu-scheduler and 0, 1 have vgpu-scheduler and 7" in text
    two.news.pod_gone("uid-of-odd")
    await two.settle()
    assert woken(two) == {"a-0", "a-1"}
    nodes = scheduler.simulate(pods)
    assert await scheduler.bind(pods, nodes) == ["", ""]


async def test_pods_of_a_group_with_two_schedulers_are_refused(two: Replica) -> None:
    pods = a_gang(two, "a", 1)
    pods.append(two.pod("a-1", group="a", limits=WHOLE, scheduler="another"))
    assert not any(Scheduler(two).simulate(pods))


async def test_a_group_beyond_its_quota_is_refused_and_woken_once_the_quota_grows(
    two: Replica,
) -> None:
    def quota(devices: int) -> ResourceQuota:
        metadata = {"name": "gpus", "namespace": "default", "resourceVersion": str(devices)}
        hard = {"requests.nvidia.com/gpu": devices}
        return ResourceQuota.model_validate({"metadata": metadata, "spec": {"hard": hard}})

    two.news.quota_changed(quota(2))
    pods, scheduler = a_gang(two, "a", 3, limits=HALF), Scheduler(two)
    assert scheduler.simulate(pods)[2] == ""
    await two.told()
    assert "a-2 did not (ResourceQuotaNotFit)" in told_of(two, pods[2])[1]
    two.news.quota_changed(quota(3))
    two.time += PROVISIONAL_S
    await two.settle()
    assert woken(two) == {"a-0", "a-1", "a-2"}
    nodes = scheduler.simulate(pods)
    assert await scheduler.bind(pods, nodes) == ["", "", ""]


# Which device goes to whom.


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_decisions_depend_on_the_order_of_the_calls_and_nothing_else(
    order: tuple[int, ...],
) -> None:
    """Two replicas that see the pods in different orders give the same answers to Filter."""
    answers = []
    for arrival in (order, order[::-1]):
        replica = Replica()
        for number in range(3):
            replica.device(uuid=f"GPU-{number}", node=f"node-{number}", memory_mib=16384)
        replica.news.pod_group_changed(a_pod_group("a", least=3))
        for number in arrival:
            replica.pod(f"a-{number}", group="a", limits=HALF)
        pods = sorted((pod.pod for pod in replica.cache.pods()), key=lambda pod: pod.metadata.name)
        answers.append(Scheduler(replica).simulate([pods[number] for number in order]))
    assert answers[0] == answers[1]
    assert all(answers[0])


async def test_twenty_groups_take_turns_whole_and_leave_no_room_unused() -> None:
    """Eight groups fit at a time. They end one by one, and lone pods come in between.

    Earmarks are disabled, because a lone pod would have to wait for them.
    """
    scheduling = {"starvationAfterSeconds": 0}
    replica = Replica(config=ClusterConfig.model_validate({"scheduling": scheduling}))
    mib, size, room = 2048, 8, 8
    replica.fleet(room, devices=1, memory_mib=size * mib)
    scheduler, capacity = Scheduler(replica), room * size * mib
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    waiting = {
        f"g{number}": a_gang(replica, f"g{number}", size, limits=limits) for number in range(20)
    }
    running: list[list[Pod]] = []

    async def tried(names: Sequence[str]) -> None:
        for name in names:
            nodes = scheduler.simulate(waiting[name])
            if all(nodes):
                assert await scheduler.bind(waiting[name], nodes) == [""] * size
                running.append(waiting.pop(name))
        await replica.settle()

    await tried(list(waiting))
    while running:
        assert not waiting or used(replica) > capacity - size * mib
        for pod in running.pop(0):
            await ends(replica, pod)
        replica.time += REQUEUE_EVERY_S
        if waiting and len(waiting) % 5 == 0:
            lone = replica.offered(f"lone-{len(waiting)}", limits=limits)
            assert replica.reservation(lone) is not None
            await replica.settle()
            await ends(replica, lone)
        await replica.settle()
        named = {name.split("-")[0] for name in woken(replica)}
        await tried([name for name in waiting if name in named])
    assert not waiting
    assert used(replica) == 0
