from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from builders import a_pod_group
from vgpu_api.resources import EVENTS, NODES, POD_GROUPS, PODS
from vgpu_client.api import Api
from vgpu_local.kubelet.node import NodeShape, register_node, write_node_status
from vgpu_local.scheduler.extender import ExtenderConfig
from vgpu_local.scheduler.loop import Scheduler
from vgpu_local.scheduler.queue import Backoff

Json = dict[str, Any]
SLOTS, MEMORY = "ex.dev/gpu", "ex.dev/gpumem"


class FakeExtender:
    """Answers Filter with `refusals` and makes the Bindings, unless the test changes that.

    Attributes:
        filtered: (pod, candidates) of each filter call.
        bound: (pod, node) of each bind call.
        refusals: node → reason for `FailedNodes`.
        bind_error: what bind answers with, while set.
        proposed: the victims of each preempt call, by node.
        adds: node → UIDs of pods that preempt adds to the victims; nodes without an entry are left
            out of its answer.
    """

    def __init__(self, api: Api) -> None:
        self.filtered: list[tuple[str, list[str]]] = []
        self.bound: list[tuple[str, str]] = []
        self.refusals: dict[str, str] = {}
        self.bind_error = ""
        self.proposed: list[dict[str, list[str]]] = []
        self.adds: dict[str, list[str]] = {}
        self._api = api
        self._called = asyncio.Condition()
        app = web.Application()
        app.router.add_post("/filter", self._filter)
        app.router.add_post("/bind", self._bind)
        app.router.add_post("/preempt", self._preempt)
        self.server = TestServer(app)

    async def calls(self, count: int) -> None:
        """Wait for this many Filter calls."""
        async with asyncio.timeout(20), self._called:
            await self._called.wait_for(lambda: len(self.filtered) >= count)

    async def _filter(self, request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked["Nodes"] is None
        async with self._called:
            self.filtered.append((asked["Pod"]["metadata"]["name"], sorted(asked["NodeNames"])))
            self._called.notify_all()
        passed = [name for name in asked["NodeNames"] if name not in self.refusals]
        # Answers are read without regard to case.
        return web.json_response({"nodeNames": passed, "FAILEDNODES": self.refusals})

    async def _bind(self, request: web.Request) -> web.Response:
        asked = await request.json()
        assert set(asked) == {"PodName", "PodNamespace", "PodUID", "Node"}
        self.bound.append((asked["PodName"], asked["Node"]))
        if self.bind_error:
            return web.json_response({"Error": self.bind_error})
        await self._api.bind_pod(
            namespace=asked["PodNamespace"],
            name=asked["PodName"],
            uid=asked["PodUID"],
            node=asked["Node"],
            annotations={"bound-by": "extender"},
        )
        return web.json_response({})

    async def _preempt(self, request: web.Request) -> web.Response:
        asked = await request.json()
        by_node = asked["NodeNameToMetaVictims"]
        proposed = {n: [each["UID"] for each in by_node[n]["Pods"]] for n in by_node}
        self.proposed.append(proposed)
        kept = {n: [*proposed[n], *more] for n, more in self.adds.items()}
        victims = {n: {"Pods": [{"UID": uid} for uid in uids]} for n, uids in kept.items()}
        return web.json_response({"NodeNameToMetaVictims": victims})


@pytest.fixture
async def extender(api: Api) -> AsyncIterator[FakeExtender]:
    fake = FakeExtender(api)
    await fake.server.start_server()
    yield fake
    await fake.server.close()


@asynccontextmanager
async def running(api: Api, extender: FakeExtender, backoff: Backoff) -> AsyncIterator[Scheduler]:
    config = ExtenderConfig(
        str(extender.server.make_url("")),
        preempt_verb="preempt",
        managed={SLOTS: False, MEMORY: True},
        timeout_s=5,
    )
    scheduler = Scheduler(api, frozenset({"mine"}), [config], backoff=backoff)
    task = asyncio.create_task(scheduler.run())
    yield scheduler
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
async def scheduler(api: Api, extender: FakeExtender) -> AsyncIterator[Scheduler]:
    async with running(api, extender, Backoff(first=0.05, last=20, between=0.05)) as scheduler:
        yield scheduler


async def add_node(api: Api, name: str, *, cpu: int = 8, slots: int | None = 8) -> None:
    shape = NodeShape(name, cpu=cpu, labels={"name": name})
    await register_node(api, shape)
    await write_node_status(api, shape, {} if slots is None else {SLOTS: (slots, slots)})


async def create_pod(
    api: Api, name: str, limits: dict[str, str] | None = None, **spec: Any
) -> None:
    container = {"name": "c", "image": "none", "resources": {"limits": limits or {}}}
    await api.create(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulerName": "mine", "containers": [container], **spec},
        },
    )


async def until(api: Api, name: str, holds: Callable[[Json], object]) -> Json:
    """Return the pod as soon as it satisfies `holds`."""
    async with asyncio.timeout(20):
        listing = await api.list(PODS, namespace="default")
        for pod in listing.items:
            if pod["metadata"]["name"] == name and holds(pod):
                return pod
        stream = api.watch(PODS, resource_version=listing.resource_version, namespace="default")
        async with aclosing(stream) as events:
            async for event in events:
                pod = event["object"]
                if pod["metadata"].get("name") == name and holds(pod):
                    return pod
    raise AssertionError("the watch ended")


async def node_of(api: Api, name: str) -> str:
    pod = await until(api, name, lambda pod: pod["spec"].get("nodeName"))
    return str(pod["spec"]["nodeName"])


async def why_pending(api: Api, name: str) -> Json:
    def unscheduled(pod: Json) -> list[Json]:
        conditions = pod["status"].get("conditions", ())
        return [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]

    return unscheduled(await until(api, name, unscheduled))[0]


async def test_a_pod_of_the_extenders_is_bound_by_the_extender_to_a_node_it_allows(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    await add_node(api, "n1")
    await add_node(api, "n2")
    extender.refusals = {"n1": "no room on any GPU"}
    await create_pod(api, "p", {SLOTS: "1", MEMORY: "4000"})
    assert await node_of(api, "p") == "n2"
    assert extender.bound == [("p", "n2")]
    pod = await api.get(PODS, "p", namespace="default")
    assert pod["metadata"]["annotations"] == {"bound-by": "extender"}


async def test_a_pod_without_managed_resources_never_reaches_the_extender(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    await add_node(api, "n1")
    await create_pod(api, "p", {"cpu": "1"})
    assert await node_of(api, "p") == "n1"
    assert not extender.filtered
    assert not extender.bound


async def test_pods_of_other_schedulers_and_gated_pods_are_left_alone(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    await add_node(api, "n1")
    await create_pod(api, "other", schedulerName="somebody")
    await create_pod(api, "gated", schedulingGates=[{"name": "ex.dev/wait"}])
    await create_pod(api, "p")
    await node_of(api, "p")
    listing = await api.list(PODS, namespace="default")
    bound = {p["metadata"]["name"] for p in listing.items if p["spec"].get("nodeName")}
    assert bound == {"p"}


async def test_the_refusals_of_all_nodes_stand_in_the_condition_and_an_event(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    for name, slots in (("n1", 8), ("n2", 8), ("n3", None)):
        await add_node(api, name, slots=slots)
    extender.refusals = dict.fromkeys(("n1", "n2"), "no room on any GPU")
    await create_pod(api, "p", {SLOTS: "1"})
    condition = await why_pending(api, "p")
    assert condition["reason"] == "Unschedulable"
    assert condition["message"] == (
        "0/3 nodes are available: 1 Insufficient ex.dev/gpu, 2 no room on any GPU. "
        "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
    )
    assert extender.filtered[0] == ("p", ["n1", "n2"])
    listing = await api.list(EVENTS, namespace="default")
    events = [*listing.items]
    if not events:  # it is written right after the condition
        stream = api.watch(EVENTS, resource_version=listing.resource_version)
        async with asyncio.timeout(10), aclosing(stream) as news:
            events = [(await anext(news))["object"]]
    assert (events[0]["reason"], events[0]["message"]) == (
        "FailedScheduling",
        condition["message"],
    )


async def test_an_annotation_makes_a_waiting_pod_be_tried_at_once_and_a_status_does_not(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    await add_node(api, "n1")
    extender.refusals = {"n1": "no"}
    await create_pod(api, "p", {SLOTS: "1"})
    await extender.calls(6)  # from now on the back-off is longer than the test may take
    status = {"status": {"message": "touched"}}
    await api.merge_patch(PODS, "p", status, namespace="default", subresource="status")
    extender.refusals = {}
    annotation = {"metadata": {"annotations": {"poke": "1"}}}
    await api.merge_patch(PODS, "p", annotation, namespace="default")
    assert await node_of(api, "p") == "n1"
    assert len(extender.filtered) == 7


async def test_a_new_node_is_noticed_by_waiting_pods(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    await create_pod(api, "p", {SLOTS: "1"})
    assert (await why_pending(api, "p"))["message"] == "no nodes available to schedule pods"
    await add_node(api, "n1")
    assert await node_of(api, "p") == "n1"


async def test_what_is_assumed_counts_before_it_is_bound(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    await add_node(api, "n1", slots=3)
    for index in range(5):
        await create_pod(api, f"p{index}", {SLOTS: "1"})
    for index in range(5):
        await until(
            api,
            f"p{index}",
            lambda pod: pod["spec"].get("nodeName") or pod["status"].get("conditions"),
        )
    listing = await api.list(PODS, namespace="default")
    assert sum("nodeName" in pod["spec"] for pod in listing.items) == 3
    assert len(extender.bound) == 3


async def test_a_pod_that_ended_makes_room(api: Api, scheduler: Scheduler, extender: FakeExtender):
    await add_node(api, "n1", slots=1)
    await create_pod(api, "first", {SLOTS: "1"})
    await node_of(api, "first")
    await create_pod(api, "second", {SLOTS: "1"})
    await why_pending(api, "second")
    ended = {"status": {"phase": "Succeeded"}}
    await api.merge_patch(PODS, "first", ended, namespace="default", subresource="status")
    assert await node_of(api, "second") == "n1"


async def test_a_failed_bind_frees_the_node_and_is_tried_again(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    await add_node(api, "n1", slots=1)
    extender.bind_error = "claim changed"
    await create_pod(api, "p", {SLOTS: "1"})
    condition = await why_pending(api, "p")
    assert (condition["reason"], condition["message"]) == (
        "SchedulerError",
        "binding rejected: claim changed",
    )
    extender.bind_error = ""
    assert await node_of(api, "p") == "n1"


async def test_an_extender_that_does_not_answer_keeps_the_pod_pending(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    await add_node(api, "n1")
    await extender.server.close()
    await create_pod(api, "p", {SLOTS: "1"})
    condition = await why_pending(api, "p")
    assert condition["reason"] == "SchedulerError"
    assert condition["message"].startswith('Post "http://127.0.0.1')


async def test_the_nominated_node_is_asked_first_and_alone(
    api: Api, scheduler: Scheduler, extender: FakeExtender
):
    for name in ("n1", "n2"):
        await add_node(api, name)
    await api.merge_patch(NODES, "n1", {"spec": {"unschedulable": True}})
    await api.merge_patch(NODES, "n2", {"spec": {"unschedulable": True}})
    await create_pod(api, "p", {SLOTS: "1"})
    await why_pending(api, "p")
    nominated = {"status": {"nominatedNodeName": "n2"}}
    await api.merge_patch(PODS, "p", nominated, namespace="default", subresource="status")
    for name in ("n2", "n1"):
        await api.merge_patch(NODES, name, {"spec": {"unschedulable": None}})
    assert await node_of(api, "p") == "n2"
    assert extender.filtered == [("p", ["n2"])]


# Groups.


async def create_group(api: Api, least: int) -> None:
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup"}
    await api.create(POD_GROUPS[0], {**group, **a_pod_group("g", least=least).to_wire()})


async def create_members(api: Api, *names: str) -> None:
    for name in names:
        await create_pod(api, name, {SLOTS: "1"}, schedulingGroup={"podGroupName": "g"})


async def test_a_group_is_tried_once_it_and_enough_of_its_pods_are_there(
    api: Api, scheduler: Scheduler, extender: FakeExtender
) -> None:
    await add_node(api, "n1")
    await create_members(api, "a")
    await why_pending(api, "a")
    await create_group(api, 2)
    await create_pod(api, "alone", {SLOTS: "1"})
    await node_of(api, "alone")
    assert [name for name, _ in extender.filtered] == ["alone"]
    await create_members(api, "b")
    assert [await node_of(api, name) for name in ("a", "b")] == ["n1", "n1"]
    assert sorted(name for name, _ in extender.filtered[1:]) == ["a", "b"]


async def test_a_group_that_does_not_fit_as_a_whole_takes_nothing_from_others(
    api: Api, scheduler: Scheduler, extender: FakeExtender
) -> None:
    await add_node(api, "n1", slots=2)
    await create_group(api, 3)
    await create_members(api, "a", "b", "c")
    await extender.calls(2)  # the third pod does not pass the scheduler's own filters
    await why_pending(api, "a")
    for name in ("one", "two"):
        await create_pod(api, name, {SLOTS: "1"})
        await node_of(api, name)
    assert {name for name, _ in extender.bound} == {"one", "two"}


async def test_pods_beyond_the_minimum_start_when_there_is_room(
    api: Api, scheduler: Scheduler, extender: FakeExtender
) -> None:
    await add_node(api, "n1", slots=2)
    await create_members(api, "a", "b", "c")
    await create_group(api, 2)
    for name in ("a", "b"):
        await node_of(api, name)
    assert "nodeName" not in (await api.get(PODS, "c", namespace="default"))["spec"]
    await add_node(api, "n2", slots=1)
    assert await node_of(api, "c") == "n2"


async def test_a_late_member_that_is_due_first_does_not_go_before_the_others(
    api: Api, extender: FakeExtender
) -> None:
    async with running(api, extender, Backoff(first=60, last=60, between=60)):
        await add_node(api, "n1", slots=1)
        await create_group(api, 2)
        await create_members(api, "a", "b")
        for name in ("a", "b"):
            await why_pending(api, name)
        await add_node(api, "n2", slots=1)
        await create_members(api, "c")
        for name in ("a", "b"):
            await node_of(api, name)
    assert "nodeName" not in (await api.get(PODS, "c", namespace="default"))["spec"]


# Preemption.


async def full_node(api: Api) -> list[str]:
    """Fill a node with two pods of priority 0 and 5; return their UIDs."""
    await add_node(api, "n1", cpu=2)
    for name, priority in (("low", 0), ("middle", 5)):
        await create_pod(api, name, {"cpu": "1"}, priority=priority)
        await node_of(api, name)
    pods = [await api.get(PODS, name, namespace="default") for name in ("low", "middle")]
    return [pod["metadata"]["uid"] for pod in pods]


async def is_deleted(api: Api, name: str) -> bool:
    return bool(
        (await api.get(PODS, name, namespace="default"))["metadata"].get("deletionTimestamp")
    )


async def test_the_least_important_pods_that_suffice_end_for_a_more_important_one(
    api: Api, scheduler: Scheduler, extender: FakeExtender
) -> None:
    low, _ = await full_node(api)
    extender.adds = {"n1": []}
    await create_pod(api, "high", {"cpu": "1", SLOTS: "1"}, priority=10)
    await until(api, "low", lambda pod: pod["metadata"].get("deletionTimestamp"))
    assert extender.proposed[0] == {"n1": [low]}
    assert not await is_deleted(api, "middle")
    high = await api.get(PODS, "high", namespace="default")
    assert high["status"]["nominatedNodeName"] == "n1"
    await api.delete(PODS, "low", namespace="default", grace_s=0)
    assert await node_of(api, "high") == "n1"
    assert len(extender.proposed) == 1


async def test_nobody_ends_where_an_extender_says_that_it_would_be_in_vain(
    api: Api, scheduler: Scheduler, extender: FakeExtender
) -> None:
    await full_node(api)
    await create_pod(api, "high", {"cpu": "1", SLOTS: "1"}, priority=10)
    await create_pod(api, "equal", {"cpu": "1"}, priority=0)
    await why_pending(api, "equal")  # it was tried after the other pod
    assert extender.proposed
    assert not await is_deleted(api, "low")
    assert not await is_deleted(api, "middle")


async def test_pods_that_an_extender_adds_end_as_well(
    api: Api, scheduler: Scheduler, extender: FakeExtender
) -> None:
    _, middle = await full_node(api)
    extender.adds = {"n1": [middle]}
    await create_pod(api, "high", {"cpu": "1", SLOTS: "1"}, priority=10)
    for name in ("low", "middle"):
        await until(api, name, lambda pod: pod["metadata"].get("deletionTimestamp"))
