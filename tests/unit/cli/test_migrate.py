"""Steps of a move from HAMi that fail, are slow, or were started before."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from builders import (
    a_claim,
    a_container,
    a_device,
    a_node,
    a_pod,
    an_allocated_device,
    an_allocation,
)
from memory_api import MemoryApi
from set_clock import SetClock
from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node
from vgpu_api.names import OPERATOR_USER
from vgpu_api.resources import GPU_DEVICES, NODES, PODS, VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import ReservedFor
from vgpu_client.errors import Conflict
from vgpu_operator.cli.hami_installation import HamiInstallation
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.migrate import Migration, is_taken_over
from vgpu_operator.cli.printing import Printer
from vgpu_operator.insight.hami_node import BothConfigs

GPU, COUNT = "GPU-0", "nvidia.com/gpu"
REGISTER = json.dumps(
    [{"id": GPU, "index": 0, "count": 10, "devmem": 16384, "devcore": 100, "mode": "hami-core"}]
)
PLUGIN = {"app.kubernetes.io/component": "hami-device-plugin"}
AGENT = {"app.kubernetes.io/part-of": "vgpu", "app.kubernetes.io/component": "nodeagent"}
ASKED, LATER = "Requesting_2026-11-27 10:00:00", "Requesting_2026-11-27 10:05:00"
INSTALLED = HamiInstallation(
    config_maps=(),
    schedulers=({"metadata": {"name": "hami-scheduler"}, "spec": {"template": {"spec": {}}}},),
    plugins=({"spec": {"template": {"spec": {"nodeSelector": {"gpu": "on"}}}}},),
    webhooks=(),
)


class Cluster(MemoryApi):
    """A node whose programs follow its labels at once, unless a test says otherwise."""

    def __init__(self, *, cordoned: bool = False) -> None:
        super().__init__()
        self.handshake: str | None = None
        self.agent_comes = True
        self.plugin_leaves = True
        self.agent_leaves = True
        self.conflicts = 0
        self.users: list[str] = []
        node = a_node("n1", labels={"gpu": "on"}, unschedulable=cordoned).to_wire()
        node["metadata"]["annotations"] = {
            names.HAMI_NODE_REGISTER: REGISTER,
            names.HAMI_NODE_HANDSHAKE: ASKED,
        }
        node["status"]["allocatable"] = {COUNT: "10"}
        self.put(NODES, node)
        self.put_pod("plugin", labels=PLUGIN)

    def acting_as(self, user: str) -> Cluster:
        self.users.append(user)
        return self

    def put_pod(self, name: str, *, labels: Mapping[str, str] | None = None, **fields: Any) -> None:
        fields = {"phase": "Running", "admitted": False, "labels": labels, **fields}
        self.put(PODS, a_pod(name, node="n1", **fields).to_wire())

    def put_hamis(self, name: str, mib: int = 1000, *, phase: str = "Running") -> None:
        record = {names.HAMI_DEVICES_ALLOCATED: f"{GPU},NVIDIA,{mib},0:;"}
        containers = [a_container(limits={COUNT: 1})]
        self.put_pod(name, annotations=record, phase=phase, containers=containers)

    @property
    def node(self) -> dict[str, Any]:
        return self.objects["nodes", "", "n1"]

    @property
    def is_cordoned(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))

    async def list(self, resource: Resource, *, label_selector: str | None = None, **_: Any) -> Any:
        wanted = dict(each.split("=") for each in (label_selector or "").split(",") if each)
        found = [
            copy.deepcopy(obj)
            for (plural, _, _), obj in self.objects.items()
            if plural == resource.plural
            and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
        ]
        return SimpleNamespace(items=found)

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        changes: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        if resource is VGPU_CLAIMS and self.conflicts:
            self.conflicts -= 1
            self.put(VGPU_CLAIMS, self.claim(name))  # another client has written it since
            raise Conflict("stale", status=409)
        done = await super().merge_patch(
            resource, name, changes, namespace=namespace, subresource=subresource
        )
        if resource is NODES:
            self.follow()
        if "released" in (changes.get("status") or {}):  # as the operator frees it
            del self.claim(name)["status"]["allocation"]
            self.claim(name)["metadata"]["finalizers"] = []
        return done

    def follow(self) -> None:
        labels, annotations = self.node["metadata"]["labels"], self.node["metadata"]["annotations"]
        there = {name for plural, _, name in self.objects if plural == "pods"}
        if labels.get("gpu") != "on" and "plugin" in there and self.plugin_leaves:
            self.vanish(PODS, "plugin")
            if self.handshake is not None:
                annotations[names.HAMI_NODE_HANDSHAKE] = self.handshake
        if labels.get("gpu") == "on" and "plugin" not in there:
            self.put_pod("plugin", labels=PLUGIN)
            annotations[names.HAMI_NODE_REGISTER] = REGISTER
        if labels.get(names.LABEL_NODE_AGENT) == names.ON and "agent" not in there:
            self.put_pod("agent", labels=AGENT)
            if self.agent_comes:
                self.put(GPU_DEVICES, a_device(uuid=GPU, node="n1").to_wire())
        gone = labels.get(names.LABEL_NODE_AGENT) != names.ON
        if gone and "agent" in there and self.agent_leaves:
            self.vanish(PODS, "agent")


class Move:
    """A migration with its output, on a clock of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.out = io.StringIO()
        configs = BothConfigs(ClusterConfig(), ClusterConfig())
        self.work = Migration(
            cluster,  # type: ignore[arg-type]
            Printer(self.out),
            INSTALLED,
            configs,
            clock=SetClock(),
        )

    @property
    def said(self) -> list[str]:
        return self.out.getvalue().splitlines()

    async def take_over(self) -> list[str]:
        return await self.work.take_over("n1")

    async def give_back(self) -> list[str]:
        return await self.work.give_back("n1")


async def test_it_writes_claims_as_the_operator_before_the_agent_comes():
    cluster = Cluster()
    cluster.handshake = LATER
    cluster.put_hamis("a")
    cluster.put_hamis("b", 2000)
    move = Move(cluster)
    assert await move.take_over() == []
    assert set(cluster.users) == {OPERATOR_USER}
    written = [name for verb, name in cluster.log if verb == "merge status"]
    assert len(written) == 2
    places = {(verb, name): at for at, (verb, name) in enumerate(cluster.log)}
    labelled = max(at for (verb, name), at in places.items() if (verb, name) == ("merge", "n1"))
    assert all(places["merge status", name] < labelled for name in written)
    assert names.HAMI_NODE_REGISTER not in cluster.node["metadata"]["annotations"]
    assert not cluster.is_cordoned


@pytest.mark.parametrize("handshake", [LATER, "Deleted_2026.11.27 10:05:00", ""])
async def test_it_waits_until_hamis_scheduler_has_forgotten_the_node(handshake: str):
    cluster = Cluster()
    cluster.handshake = handshake
    move = Move(cluster)
    assert await move.take_over() == []
    assert not any("forgotten" in line for line in move.said)


async def test_a_scheduler_of_hamis_that_does_not_forget_is_named_and_not_waited_for_for_ever():
    move = Move(Cluster())
    assert await move.take_over() == []
    assert any("HAMi's scheduler does not show that it has forgotten" in line for line in move.said)


async def test_a_node_that_was_cordoned_before_stays_so():
    cluster = Cluster(cordoned=True)
    assert await Move(cluster).take_over() == []
    assert cluster.is_cordoned
    assert await Move(cluster).give_back() == []
    assert cluster.is_cordoned


async def test_a_pod_that_does_not_start_leaves_the_node_as_it_was():
    cluster = Cluster()
    cluster.put_hamis("slow", phase="Pending")
    before = copy.deepcopy(cluster.node)
    (said,) = await Move(cluster).take_over()
    assert said.startswith("pod default/slow: it is still starting")
    before["spec"].pop("unschedulable", None)
    after = cluster.node
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert not cluster.is_cordoned
    assert not [key for key in cluster.objects if key[0] == "vgpuclaims"]


async def test_pods_that_came_since_the_plan_are_judged_again():
    cluster = Cluster()
    cluster.put_hamis("late", 99999)
    (said,) = await Move(cluster).take_over()
    assert "records of its pods add up to 99999 MiB" in said
    assert not cluster.is_cordoned


async def test_a_device_plugin_that_stays_is_named():
    cluster = Cluster()
    cluster.plugin_leaves = False
    (said,) = await Move(cluster).take_over()
    assert said.startswith("node n1: HAMi's device plugin is still there")
    assert cluster.is_cordoned
    assert names.LABEL_NODE_AGENT not in cluster.node["metadata"]["labels"]


async def test_a_run_that_was_broken_off_is_completed_by_the_next():
    cluster = Cluster()
    cluster.handshake = LATER
    cluster.agent_comes = False
    cluster.put_hamis("a")
    (said,) = await Move(cluster).take_over()
    assert "the agent does not offer GPU-0" in said
    assert cluster.is_cordoned
    (first,) = (o for (plural, _, _), o in cluster.objects.items() if plural == "vgpuclaims")
    allocation = copy.deepcopy(first["status"]["allocation"])
    cluster.put(GPU_DEVICES, a_device(uuid=GPU, node="n1").to_wire())
    assert await Move(cluster).take_over() == []
    (again,) = (o for (plural, _, _), o in cluster.objects.items() if plural == "vgpuclaims")
    assert again["status"]["allocation"] == allocation
    assert not cluster.is_cordoned


async def test_a_run_that_was_broken_off_can_be_undone():
    cluster = Cluster()
    cluster.agent_comes = False
    cluster.put_hamis("a")
    assert await Move(cluster).take_over() != []
    assert await Move(cluster).give_back() == []
    assert not cluster.is_cordoned
    assert cluster.node["metadata"]["labels"] == {"gpu": "on"}
    assert not [key for key in cluster.objects if key[0] in ("vgpuclaims", "gpudevices")]


async def test_a_return_that_was_broken_off_is_completed_in_both_directions():
    for move in (Move.give_back, Move.take_over):
        cluster = Cluster()
        cluster.put_hamis("a")
        assert await Move(cluster).take_over() == []
        cluster.agent_leaves = False
        (said,) = await Move(cluster).give_back()
        assert said.startswith("node n1: the agent is still there")
        assert not is_taken_over(Node.model_validate(cluster.node))
        cluster.agent_leaves = True
        assert await move(Move(cluster)) == []
        assert not cluster.is_cordoned


async def test_a_claim_that_the_operator_writes_meanwhile_is_written_again():
    cluster = Cluster()
    cluster.conflicts = 2
    cluster.put_hamis("a")
    assert await Move(cluster).take_over() == []
    (claim,) = (o for (plural, _, _), o in cluster.objects.items() if plural == "vgpuclaims")
    assert claim["status"]["allocation"]["nodeName"] == "n1"


async def test_a_node_of_ours_that_is_used_is_not_given_back():
    cluster = Cluster()
    assert await Move(cluster).take_over() == []
    allocation = an_allocation(an_allocated_device(uuid=GPU), node="n1")
    cluster.put_pod("ours", admitted=True)
    uid = cluster.objects["pods", "default", "ours"]["metadata"]["uid"]
    for name, holder in (("used", uid), ("idle", "")):
        claim = a_claim(name, allocation=allocation).to_wire()
        claim["status"]["reservedFor"] = ReservedFor(pod_name="ours", pod_uid=holder).to_wire()
        cluster.put(VGPU_CLAIMS, claim)
    assert await Move(cluster).give_back() == [
        "pod default/ours uses a GPU of node n1",
        "claim default/idle holds devices of node n1",
    ]
    assert not cluster.is_cordoned


async def test_a_node_that_was_never_taken_over_cannot_be_given_back():
    with pytest.raises(CannotAnswer, match="node n1: it was not taken over from HAMi"):
        await Move(Cluster()).give_back()


async def test_an_annotation_that_somebody_has_changed_is_named():
    cluster = Cluster()
    cluster.node["metadata"]["annotations"][names.ANNOTATION_FROM_HAMI] = "?"
    with pytest.raises(CannotAnswer, match=r"from-hami.* cannot be read"):
        await Move(cluster).take_over()
