"""Uninstalling finishes from any state of a cluster, and names what it could not remove."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from builders import a_claim, a_node, a_pod, a_request
from memory_api import MemoryApi
from vgpu_api.names import (
    AGENT_LABELS,
    AGENT_NAMESPACE,
    ANNOTATION_FROM_HAMI,
    FINALIZER_IN_USE,
    HAMI,
    HAMI_NODE_HANDSHAKE,
    HAMI_NODE_REGISTER,
    LABEL_HELD_FOR,
    LABEL_NODE_AGENT,
    ON,
    OPERATOR_USER,
)
from vgpu_api.resources import (
    GPU_DEVICES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.errors import Forbidden, NotFound
from vgpu_local.programs import ROOT
from vgpu_nodeagent.config import CDI_DIR, DEVICE_PLUGINS_DIR, KUBELET_DIR, STATE_DIR
from vgpu_operator.cli.cleaner import cleaner_of
from vgpu_operator.cli.release_node import ReleaseNode
from vgpu_operator.cli.uninstall import BINDINGS, DAEMON_SETS, DEPLOYMENTS, Uninstall

OURS = {"app.kubernetes.io/part-of": "vgpu"}
DAEMON_SET = yaml.safe_load((ROOT / "manifests/base/nodeagent/daemonset.yaml").read_text())


class Cluster(MemoryApi):
    """Plays the controllers for which uninstalling waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0
        self.acted_as: list[str] = []
        self.operator_answers = True
        self.cleans = True
        self.policy_lag_s = 0.0
        self.kubelet_until_s = 0.0
        """Until then the kubelet writes its capacity again."""

    def acting_as(self, user: str) -> Cluster:
        self.acted_as.append(user)
        return self

    async def sleep(self, seconds: float) -> None:
        self.waited += seconds
        for place, obj in list(self.objects.items()):
            if place[0] == "vgpuclaims" and self.operator_answers:
                self._release(obj)
        if self.waited < self.kubelet_until_s:
            node = self.objects[("nodes", "", "node-1")]
            node["status"].setdefault("capacity", {})["nvidia.com/gpu"] = "10"

    def _release(self, claim: dict[str, Any]) -> None:
        going = "deletionTimestamp" in claim["metadata"]
        released = "released" in (claim.get("status") or {})
        if going or released:
            claim["status"].pop("allocation", None)
            claim["metadata"]["finalizers"] = []
        if going:
            metadata = claim["metadata"]
            self.vanish(VGPU_CLAIMS, metadata["name"], namespace=metadata["namespace"])

    async def list(
        self, resource: Resource, *, namespace: str | None = None, label_selector: str | None = None
    ) -> Any:
        wanted = dict(part.split("=") for part in (label_selector or "").split(",") if part)
        found = [
            copy.deepcopy(obj)
            for (plural, space, _), obj in self.objects.items()
            if plural == resource.plural
            and namespace in (None, space)
            and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
        ]
        return SimpleNamespace(items=found)

    async def create(self, resource: Resource, obj: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        made = await super().create(resource, obj)
        if resource is DAEMON_SETS:
            ready = int(self.cleans)
            status = {"desiredNumberScheduled": 1, "numberReady": ready, "observedGeneration": 1}
            self.objects[("daemonsets", "vgpu-node", made["metadata"]["name"])]["status"] = status
            self.put(PODS, self._pod_of(obj))
        return made

    def _pod_of(self, owner: Mapping[str, Any]) -> dict[str, Any]:
        name = owner["metadata"]["name"]
        return {
            "metadata": {
                "name": f"{name}-0",
                "namespace": "vgpu-node",
                "labels": owner["spec"]["selector"]["matchLabels"],
            },
            "spec": {"nodeName": "node-1"},
            "status": {},
        }

    async def delete(self, resource: Resource, name: str, **which: Any) -> dict[str, Any]:
        gone = await super().delete(resource, name, **which)
        if resource is DAEMON_SETS and ("pods", "vgpu-node", f"{name}-0") in self.objects:
            self.vanish(PODS, f"{name}-0", namespace="vgpu-node")
        return gone

    async def json_patch(self, resource: Resource, name: str, *rest: Any, **which: Any) -> Any:
        if resource is VGPU_CLAIMS and self.waited < self.policy_lag_s:
            raise Forbidden("vgpu-claims denied request", status=403)
        done = await super().json_patch(resource, name, *rest, **which)
        if resource is VGPU_CLAIMS and "deletionTimestamp" in done["metadata"]:
            self.vanish(VGPU_CLAIMS, name, namespace=which["namespace"])
        return done

    def kinds(self) -> set[str]:
        return {place[0] for place in self.objects}


def installed(*, operator: bool = True, pod: bool = False) -> Cluster:
    cluster = Cluster()
    cluster.operator_answers = operator
    node = a_node("node-1").to_wire()
    node["metadata"]["annotations"] = {HAMI_NODE_REGISTER: "[]", "other/one": "stays"}
    node["status"]["capacity"] = {"nvidia.com/gpu": "10", "cpu": "8"}
    cluster.put(NODES, node)
    for resource, name, space in (
        (MUTATING_WEBHOOKS, "vgpu", ""),
        (BINDINGS, "vgpu-claims", ""),
        (NAMESPACES, "vgpu-node", ""),
    ):
        cluster.put(resource, {"metadata": {"name": name, "namespace": space, "labels": OURS}})
    cluster.put(
        DEPLOYMENTS,
        {
            "metadata": {"name": "vgpu-operator", "namespace": "vgpu-system", "labels": OURS},
            "spec": {"selector": {"matchLabels": {"app": "operator"}}},
            "status": {"readyReplicas": int(operator)},
        },
    )
    agents = copy.deepcopy(DAEMON_SET)
    agents["metadata"]["labels"] |= OURS
    cluster.put(DAEMON_SETS, agents)
    cluster.put(PODS, cluster._pod_of(agents))
    cluster.put(GPU_DEVICES, {"metadata": {"name": "gpu-0"}})
    claim = a_claim("held", requests=[a_request()]).to_wire()
    claim["metadata"]["finalizers"] = ["other/one", FINALIZER_IN_USE]
    claim["status"] = {
        "allocation": {"nodeName": "node-1", "id": "7", "devices": []},
        "reservedFor": {"podName": "user", "podUID": "uid-of-user"},
    }
    if not operator:
        claim["metadata"]["finalizers"] = [FINALIZER_IN_USE]
    cluster.put(VGPU_CLAIMS, claim)
    if pod:
        cluster.put(PODS, a_pod("user", node="node-1", phase="Running").to_wire())
    return cluster


def uninstall(cluster: Cluster, **options: Any) -> Uninstall:
    options.setdefault("resource", "nvidia.com/gpu")
    return Uninstall(cluster, lambda _: None, clock=cluster, **options)  # type: ignore[arg-type]


async def carried_out(cluster: Cluster, **options: Any) -> list[str]:
    work = uninstall(cluster, **options)
    return await work.carry_out(await work.plan())


async def test_nothing_is_left_and_what_is_not_ours_stays() -> None:
    cluster = installed()
    assert await carried_out(cluster) == []
    assert cluster.kinds() == {"nodes"}
    node = cluster.objects[("nodes", "", "node-1")]
    assert node["metadata"]["annotations"] == {"other/one": "stays"}
    assert node["status"]["capacity"] == {"cpu": "8"}


async def test_a_node_that_was_taken_over_from_hami_keeps_no_trace_of_that() -> None:
    cluster = installed()
    node = cluster.objects[("nodes", "", "node-1")]
    node["metadata"]["labels"] = {LABEL_NODE_AGENT: ON, "pool": "stays"}
    node["metadata"]["annotations"] = {ANNOTATION_FROM_HAMI: "{}"}
    node["status"]["capacity"] = {"cpu": "8"}
    assert await carried_out(cluster) == []
    metadata = cluster.objects[("nodes", "", "node-1")]["metadata"]
    assert (metadata["annotations"], metadata["labels"]) == ({}, {"pool": "stays"})


def a_plugin(name: str, labels: Mapping[str, str], image: str) -> dict[str, Any]:
    """Return the DaemonSet of another program's device plugin."""
    return {
        "metadata": {"name": name, "namespace": "kube-system", "labels": {**labels}},
        "spec": {
            "selector": {"matchLabels": {"plugin": name}},
            "template": {"spec": {"containers": [{"name": "plugin", "image": image}]}},
        },
    }


PLUGINS = (
    a_plugin("hami-dp", {"app.kubernetes.io/component": "hami-device-plugin"}, "hami:v2.10"),
    a_plugin("nvdp", {}, "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"),
)


def beside(cluster: Cluster, plugin: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Add a node with another device plugin; return the node."""
    cluster.put(DAEMON_SETS, copy.deepcopy(dict(plugin)))
    pod = {"name": "plugin-0", "namespace": "kube-system"}
    labels = plugin["spec"]["selector"]["matchLabels"]
    cluster.put(
        PODS, {"metadata": {**pod, "labels": labels}, "spec": {"nodeName": node}, "status": {}}
    )
    wire = a_node(node).to_wire()
    wire["metadata"]["annotations"] = {HAMI_NODE_REGISTER: "[]", HAMI_NODE_HANDSHAKE: "Requesting"}
    wire["status"]["capacity"] = {"nvidia.com/gpu": "80"}
    cluster.put(NODES, wire)
    return cluster.objects[("nodes", "", node)]


async def test_a_node_of_hamis_keeps_what_hami_wrote_and_its_capacity() -> None:
    cluster = installed()
    node = beside(cluster, PLUGINS[0], "node-2")
    before = copy.deepcopy(node)
    plan = await uninstall(cluster).plan()
    assert (plan.nodes, plan.others) == (["node-1"], ["node-2"])
    assert "leave nvidia.com/gpu on nodes of another device plugin: node-2" in plan.lines(
        "nvidia.com/gpu"
    )
    assert await carried_out(cluster) == []
    assert cluster.objects[("nodes", "", "node-2")] == before
    assert cluster.objects[("nodes", "", "node-1")]["status"]["capacity"] == {"cpu": "8"}
    assert ("daemonsets", "kube-system", "hami-dp") in cluster.objects


async def test_a_node_that_is_being_given_back_loses_our_words_only() -> None:
    cluster = installed()
    node = beside(cluster, PLUGINS[0], "node-2")
    node["metadata"]["annotations"][ANNOTATION_FROM_HAMI] = "{}"
    node["metadata"]["labels"] = {LABEL_NODE_AGENT: ON, "gpu": "on"}
    assert await carried_out(cluster) == []
    left = cluster.objects[("nodes", "", "node-2")]
    assert left["metadata"]["annotations"].keys() == {HAMI_NODE_REGISTER, HAMI_NODE_HANDSHAKE}
    assert left["metadata"]["labels"] == {"gpu": "on"}
    assert left["status"]["capacity"] == {"nvidia.com/gpu": "80"}


async def test_it_does_not_start_before_nodes_taken_over_are_given_back_to_hami() -> None:
    cluster = installed()
    beside(cluster, PLUGINS[0], "node-2")
    node = cluster.objects[("nodes", "", "node-1")]
    node["metadata"]["annotations"] = {ANNOTATION_FROM_HAMI: "{}"}
    work = uninstall(cluster, delete_pods=True)
    (obstacle,) = work.obstacles(await work.plan())
    assert obstacle.startswith("node node-1 was taken over from HAMi")
    assert obstacle.endswith("kubectl vgpu migrate hami --node node-1 --undo")


async def test_nodes_taken_over_from_a_hami_that_is_gone_are_no_obstacle() -> None:
    cluster = installed()
    node = cluster.objects[("nodes", "", "node-1")]
    node["metadata"]["annotations"] = {ANNOTATION_FROM_HAMI: "{}"}
    work = uninstall(cluster, delete_pods=True)
    assert work.obstacles(await work.plan()) == []


async def test_nvidias_plugin_keeps_its_capacity_and_our_register_goes() -> None:
    cluster = installed()
    beside(cluster, PLUGINS[1], "node-2")
    assert await carried_out(cluster) == []
    left = cluster.objects[("nodes", "", "node-2")]
    assert left["metadata"]["annotations"] == {}
    assert left["status"]["capacity"] == {"nvidia.com/gpu": "80"}


async def test_a_pod_of_hamis_whose_devices_a_claim_held_goes_on() -> None:
    cluster = installed(pod=True)
    claim = cluster.objects[("vgpuclaims", "default", "held")]
    claim["metadata"]["labels"] = {LABEL_HELD_FOR: HAMI}
    work = uninstall(cluster, delete_pods=True)
    plan = await work.plan()
    assert (len(plan.users), work.obstacles(plan)) == (0, [])
    assert await work.carry_out(plan) == []
    assert ("pods", "default", "user") in cluster.objects


async def test_a_label_that_keeps_the_agent_away_stays_with_its_administrator() -> None:
    cluster = installed()
    node = cluster.objects[("nodes", "", "node-1")]
    node["metadata"]["labels"] = {LABEL_NODE_AGENT: "off"}
    assert await carried_out(cluster) == []
    left = cluster.objects[("nodes", "", "node-1")]["metadata"]["labels"]
    assert left == {LABEL_NODE_AGENT: "off"}


async def test_the_order_is_the_one_in_which_nothing_waits_for_what_has_gone() -> None:
    cluster = installed(operator=False)
    await carried_out(cluster)
    names = [name for verb, name in cluster.log]
    order = ["vgpu", "held", "vgpu-operator", "vgpu-claims", "vgpu-nodeagent", "vgpu-cleaner"]
    assert [names.index(name) for name in order] == sorted(map(names.index, order))


async def test_without_an_operator_finalizers_are_removed_and_only_ours() -> None:
    cluster = installed(operator=False)
    assert await carried_out(cluster) == []
    assert "vgpuclaims" not in cluster.kinds()
    assert cluster.waited < 60  # agents that do not answer are not waited for


async def test_resource_claims_lose_our_finalizer_and_keep_those_of_others() -> None:
    cluster = installed(operator=False)
    metadata = {"name": "vgpu-0", "namespace": "default"}
    finalizers = ["other/one", FINALIZER_IN_USE]
    cluster.put(RESOURCE_CLAIMS, {"metadata": {**metadata, "finalizers": finalizers}})
    assert await carried_out(cluster) == []
    left = cluster.objects[(RESOURCE_CLAIMS.plural, "default", "vgpu-0")]
    assert left["metadata"]["finalizers"] == ["other/one"]


async def test_a_users_resource_claim_loses_our_devices_once_no_pod_has_it_reserved() -> None:
    cluster = installed(operator=False)
    result = {"driver": "vgpu.dev", "device": "gpu-0"}
    others = {"driver": "gpu.nvidia.com", "device": "gpu-1"}
    for name, shown in (("mine", result), ("others", others)):
        status = {"allocation": {"devices": {"results": [shown]}}}
        cluster.put(
            RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "default"}, "status": status}
        )
    assert await carried_out(cluster) == []
    found = [
        cluster.objects[(RESOURCE_CLAIMS.plural, "default", each)] for each in ("mine", "others")
    ]
    assert ["allocation" in each["status"] for each in found] == [False, True]


async def test_a_resource_claim_that_stays_reserved_is_named() -> None:
    cluster = installed(operator=False)
    result = {"driver": "vgpu.dev", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"uid": "u"}]}
    cluster.put(
        RESOURCE_CLAIMS, {"metadata": {"name": "mine", "namespace": "default"}, "status": status}
    )
    (left,) = await carried_out(cluster)
    assert left == "ResourceClaim default/mine keeps its devices: a pod has it reserved"


async def test_a_policy_that_an_api_server_still_has_is_outlasted() -> None:
    cluster = installed(operator=False)
    cluster.policy_lag_s = 10
    assert await carried_out(cluster) == []


async def test_a_policy_that_stays_ends_the_wait_and_is_named() -> None:
    cluster = installed(operator=False)
    cluster.policy_lag_s = 1e9
    left = await carried_out(cluster)
    assert left == ["claim default/held keeps its finalizer: 403: vgpu-claims denied request"]


async def test_a_host_that_cannot_be_cleaned_is_named_and_the_rest_goes() -> None:
    cluster = installed()
    cluster.cleans = False
    assert await carried_out(cluster) == ["the host of node node-1 is not clean"]
    assert cluster.kinds() == {"nodes"}


async def test_capacity_that_a_kubelet_writes_anew_is_taken_off_until_it_stays_away() -> None:
    cluster = installed()
    cluster.kubelet_until_s = 300
    assert await carried_out(cluster) == []
    assert cluster.waited > 300
    assert "nvidia.com/gpu" not in cluster.objects[("nodes", "", "node-1")]["status"]["capacity"]


async def test_capacity_that_never_goes_ends_the_wait_and_is_named() -> None:
    cluster = installed()
    cluster.kubelet_until_s = 1e9
    assert await carried_out(cluster) == ["node node-1 still has nvidia.com/gpu"]


async def test_pods_that_use_devices_are_in_the_way_unless_they_may_be_deleted() -> None:
    cluster = installed(pod=True)
    work = uninstall(cluster)
    assert work.obstacles(await work.plan()) == ["pod default/user uses a GPU"]
    work = uninstall(cluster, delete_pods=True)
    plan = await work.plan()
    assert work.obstacles(plan) == []
    assert "delete 1 pods that use GPUs" in plan.lines("nvidia.com/gpu")
    assert await work.carry_out(plan) == []
    assert "pods" not in cluster.kinds()


async def test_it_may_be_run_again_and_after_a_plain_delete() -> None:
    cluster = installed()
    await carried_out(cluster)
    left = await carried_out(cluster)
    assert left == [
        "hosts were not cleaned: there was no DaemonSet of agents (docs/operations/uninstall.md)"
    ]


def test_the_cleaner_goes_where_the_agents_went_and_may_remove_the_state_folder() -> None:
    agents = copy.deepcopy(DAEMON_SET)
    container = agents["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["--state-dir", "/data/vgpu", "--cdi-dir=/etc/cdi", "--kubelet-dir=/k"]
    made = cleaner_of(agents)
    spec = made["spec"]["template"]["spec"]
    (clean,) = spec["initContainers"]
    assert clean["command"] == ["vgpu-nodeagent", "clean"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in clean["volumeMounts"]}
    assert paths["state"] == "/data"
    assert f"--state-dir={mounts['state']}/vgpu" in clean["args"]
    assert f"--cdi-dir={mounts['cdi']}" in clean["args"]
    assert paths["cdi"] == "/etc/cdi"
    assert "--kubelet-dir=/k" in clean["args"]
    assert paths["plugins"] == mounts["plugins"] == "/k/plugins"
    assert paths["plugins-registry"] == mounts["plugins-registry"] == "/k/plugins_registry"
    for key in ("tolerations", "nodeSelector", "affinity", "serviceAccountName"):
        assert spec[key] == agents["spec"]["template"]["spec"][key]
    assert made["metadata"]["name"] != agents["metadata"]["name"]
    assert agents["spec"]["selector"] != made["spec"]["selector"]


def test_no_mount_of_the_cleaner_lies_in_the_one_that_the_host_shares() -> None:
    (clean,) = cleaner_of(DAEMON_SET)["spec"]["template"]["spec"]["initContainers"]
    mounts = clean["volumeMounts"]
    (shared,) = (m["mountPath"] for m in mounts if m.get("mountPropagation") == "Bidirectional")
    assert [m["name"] for m in mounts if m["mountPath"].startswith(f"{shared}/")] == []


def test_the_manifest_for_those_who_use_kubectl_is_the_same() -> None:
    text = (ROOT / "manifests" / "uninstall" / "cleaner.yaml").read_text()
    assert yaml.safe_load(text) == cleaner_of(DAEMON_SET)


def test_the_folders_of_the_cleaner_are_the_agents_own() -> None:
    (clean,) = cleaner_of(DAEMON_SET)["spec"]["template"]["spec"]["initContainers"]
    assert f"--cdi-dir={CDI_DIR}" in clean["args"]
    assert f"--device-plugins-dir={DEVICE_PLUGINS_DIR}" in clean["args"]
    assert f"--kubelet-dir={KUBELET_DIR}" in clean["args"]
    assert clean["args"][0].endswith(f"/{STATE_DIR.name}")


async def test_a_lost_nodes_claims_are_released_in_the_operators_name() -> None:
    cluster = installed()
    work = ReleaseNode(cluster, lambda _: None, node="node-1", clock=cluster)  # type: ignore[arg-type]
    plan = await work.plan()
    assert await work.obstacles(plan) == []
    assert await work.carry_out(plan) == []
    assert cluster.acted_as == [OPERATOR_USER]
    assert "allocation" not in cluster.claim("held")["status"]
    assert cluster.claim("held")["status"]["released"] == {"allocationID": "7"}


async def test_a_claim_elsewhere_is_not_touched() -> None:
    cluster = installed()
    work = ReleaseNode(cluster, lambda _: None, node="node-2", clock=cluster)  # type: ignore[arg-type]
    assert (await work.plan()).claims == ()


def an_agent(*, ready: bool) -> dict[str, Any]:
    return {
        "metadata": {"name": "agent-1", "namespace": AGENT_NAMESPACE, "labels": AGENT_LABELS},
        "spec": {"nodeName": "node-1"},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


async def test_an_agent_that_is_ready_is_in_the_way() -> None:
    cluster = installed()
    cluster.put(PODS, an_agent(ready=True))
    work = ReleaseNode(cluster, lambda _: None, node="node-1", clock=cluster)  # type: ignore[arg-type]
    (obstacle,) = await work.obstacles(await work.plan())
    assert "the agent of node node-1 is alive" in obstacle


@pytest.mark.parametrize("node_ready", ["True", "Unknown"])
async def test_an_agent_that_is_not_ready_or_whose_kubelet_is_silent_is_not(
    node_ready: str,
) -> None:
    cluster = installed()
    cluster.put(PODS, an_agent(ready=node_ready == "Unknown"))
    node = copy.deepcopy(cluster.objects[NODES.plural, "", "node-1"])
    node["status"]["conditions"] = [{"type": "Ready", "status": node_ready}]
    cluster.put(NODES, node)
    work = ReleaseNode(cluster, lambda _: None, node="node-1", clock=cluster)  # type: ignore[arg-type]
    assert await work.obstacles(await work.plan()) == []


async def test_without_an_operator_a_release_ends_and_says_so() -> None:
    cluster = installed(operator=False)
    work = ReleaseNode(cluster, lambda _: None, node="node-1", clock=cluster)  # type: ignore[arg-type]
    left = await work.carry_out(await work.plan())
    assert left == ["claim default/held is still allocated; check that the operator runs"]


async def test_a_kind_that_the_server_does_not_know_has_no_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = installed()

    async def unknown(resource: Resource, **which: Any) -> Any:
        if resource in (VGPU_CLAIMS, GPU_DEVICES):
            raise NotFound("the server could not find the requested resource", status=404)
        return await Cluster.list(cluster, resource, **which)

    monkeypatch.setattr(cluster, "list", unknown)
    work = uninstall(cluster)
    plan = await work.plan()
    assert (plan.claims, plan.devices) == ([], [])
