"""The members of a group of pods, and the number that must start together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest

from builders import GATE, a_pod_group
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, PodGroup
from vgpu_api.names import (
    ANNOTATION_GROUP,
    ANNOTATION_GROUP_MIN,
    COSCHEDULING_FORMER_GROUP,
    COSCHEDULING_GROUP,
    VOLCANO_GROUP,
)
from vgpu_api.resources import POD_GROUPS, Resource
from vgpu_client.clock import Clock
from vgpu_client.errors import NotFound
from vgpu_client.reads import Each, Listing
from vgpu_operator.dialects.pod_groups import GroupKind
from vgpu_operator.engine import events
from vgpu_operator.engine.gpu_pod import GroupKey, group_of
from vgpu_operator.engine.informers import follow_pod_groups
from vgpu_operator.engine.pod_reading import PodReader
from vgpu_operator.engine.scheduling.groups import group, members

A = GroupKey("default", "a")


def names(replica: Replica) -> list[str]:
    return [pod.pod.metadata.name for pod in members(replica.state, A)]


async def test_a_group_has_the_pods_that_name_it_in_their_namespace(replica: Replica) -> None:
    for name in ("a-1", "a-0"):
        replica.pod(name, group="a")
    replica.pod("lone")
    replica.pod("b-0", group="b")
    replica.pod("elsewhere", group="a", namespace="other")
    assert names(replica) == ["a-0", "a-1"]


async def test_pods_that_end_or_go_are_no_members_any_more(replica: Replica) -> None:
    for name in ("ended", "going", "gone", "stays"):
        replica.pod(name, group="a")
    replica.pod("ended", group="a", phase="Failed", resource_version=2)
    replica.pod("going", group="a", deletion_timestamp="2026-01-01T00:00:00Z", resource_version=2)
    replica.news.pod_gone("uid-of-gone")
    assert names(replica) == ["stays"]
    for name in ("ended", "going", "stays"):
        replica.news.pod_gone(f"uid-of-{name}")
    assert A not in replica.cache.groups()


@pytest.mark.parametrize(("said", "least"), [(3, 3), (None, 1)])
async def test_the_pod_group_says_how_many_must_start_together(
    replica: Replica, said: int | None, least: int
) -> None:
    """A group without a gang policy has no minimum, so each pod starts alone."""
    assert group(replica.state, A).least is None
    replica.news.pod_group_changed(a_pod_group("a", least=said))
    assert group(replica.state, A).least == least
    replica.news.pod_group_gone("default", "a")
    assert group(replica.state, A).least is None


def test_the_watch_keeps_the_group_of_a_gpu_pod() -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    raw = {
        "metadata": {"name": "a-0", "namespace": "default", "uid": "1", "generation": 1},
        "spec": {"containers": [container], "schedulingGroup": {"podGroupName": "a"}},
    }
    reader = PodReader(Replica().state.config, has_room=False)
    for _ in range(2):  # the second time only the changeable fields are read
        read = reader.read(raw)
        assert read.spec.scheduling_group is not None
        assert read.spec.scheduling_group.pod_group_name == "a"
    assert Pod.model_validate({"spec": {"schedulingGroup": {}}}).spec.scheduling_group is not None


@pytest.mark.parametrize("node", ["", "node-1"])
@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"annotations": {VOLCANO_GROUP: "a", "x": "y"}}, GroupKind.VOLCANO),
        ({"labels": {COSCHEDULING_GROUP: "a", "x": "y"}}, GroupKind.COSCHEDULING),
        ({"labels": {COSCHEDULING_FORMER_GROUP: "a"}}, GroupKind.COSCHEDULING),
        ({"annotations": {ANNOTATION_GROUP: "a", ANNOTATION_GROUP_MIN: "2"}}, GroupKind.VGPU),
    ],
)
def test_in_mode_gate_a_pod_without_gpus_keeps_every_word_for_its_group(
    metadata: dict[str, Any], kind: GroupKind, node: str
) -> None:
    raw = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "c"}]},
    }
    read = PodReader(GATE, has_room=True).read(raw)
    assert group_of(read, GATE) == GroupKey("default", "a", kind)
    assert group_of(read, ClusterConfig()) is None


class Server:
    """An API server that serves one version of PodGroup or none."""

    def __init__(self) -> None:
        self.version = ""
        self.names = ["a"]
        self.changed = asyncio.Event()
        self.refused = asyncio.Event()

    def serve(self, version: str, *names: str) -> None:
        self.version, self.names = version, list(names)
        self.changed.set()
        self.changed = asyncio.Event()

    async def list(self, resource: Resource, *, each: Each, **_: Any) -> Listing:
        if resource.version != self.version:
            self.refused.set()
            raise NotFound("the server could not find the requested resource", status=404)
        return Listing([each(self._object(name)) for name in self.names], "10")

    async def watch(self, resource: Resource, **_: Any) -> AsyncGenerator[dict[str, Any], None]:
        while resource.version == self.version:
            await self.changed.wait()
        raise NotFound("the server could not find the requested resource", status=404)
        yield {}

    def _object(self, name: str) -> dict[str, Any]:
        raw = a_pod_group(name, least=2).to_wire()
        raw["metadata"] |= {"uid": f"uid-of-{name}", "resourceVersion": "5"}
        return raw


class NoWait(Clock):
    """A clock whose sleeps end at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Seen:
    """The PodGroups that result from an informer's events."""

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self.not_served: set[GroupKind] = set()
        self._news = asyncio.Event()

    def observe(self, event: events.Event) -> None:
        match event:
            case events.PodGroupObserved(PodGroup() as seen):
                self.groups.add(seen.metadata.name)
            case events.PodGroupsNotServed(kind):
                self.groups.clear()
                self.not_served.add(kind)
        self._news.set()

    async def until(self, *expected: str) -> None:
        async with asyncio.timeout(5):
            while self.groups != set(expected):
                await self._news.wait()
                self._news.clear()


async def test_pod_groups_are_followed_in_the_version_that_is_served() -> None:
    """No version is served at first, then one as after enabling a feature gate, then a newer."""
    server, seen = Server(), Seen()
    following = asyncio.create_task(follow_pod_groups(server, seen, NoWait()))
    await server.refused.wait()
    newest, oldest = POD_GROUPS[0].version, POD_GROUPS[-1].version
    server.serve(oldest, "a", "b")
    await seen.until("a", "b")
    server.serve(newest, "c")
    await seen.until("c")
    server.serve("")
    await seen.until()
    assert GroupKind.KUBERNETES in seen.not_served
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
