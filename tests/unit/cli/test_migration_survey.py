"""The survey before a move reads HAMi's objects, whatever names its chart gave them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from builders import a_container, a_node, a_pod
from vgpu_api import names
from vgpu_api.resources import (
    CONFIG_MAPS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_api.vendors import kinds
from vgpu_client.errors import Forbidden, NotFound
from vgpu_operator.cli.hami_installation import (
    arguments_of,
    configuration_of,
    read_installation,
)
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.migration_survey import lines_of, step_of, survey
from vgpu_operator.cli.uninstall import DAEMON_SETS, DEPLOYMENTS

COMPONENT = "app.kubernetes.io/component"
ON = {"operator": "In", "values": ["on"]}
REGISTER = '[{"id": "GPU-0", "count": 10, "devmem": 16384, "devcore": 100, "mode": "hami-core"}]'
ARGUMENTS = [
    *("scheduler", "--http_bind=0.0.0.0:443", "--scheduler-name=acme-scheduler"),
    *("--node-scheduler-policy=spread", "--gpu-scheduler-policy", "binpack"),
    *("--node-label-selector=gpu=on", "--force-overwrite-default-scheduler=false", "--debug"),
]
OURS = """
scheduling: {schedulerAliases: [volcano, acme-scheduler]}
views: {hamiNodeRegister: false}
"""


def a_config_map(
    name: str, key: str, text: str, *, component: str = "", namespace: str = "acme"
) -> dict[str, Any]:
    labels = {COMPONENT: component} if component else {}
    metadata = {"name": name, "namespace": namespace, "uid": name, "labels": labels}
    return {"metadata": metadata, "data": {key: text}}


def a_workload(
    name: str, labels: Mapping[str, str], namespace: str = "acme", **spec: Any
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels)}
    return {"metadata": metadata, "spec": {"template": {"spec": spec}}}


class Cluster:
    """The objects of a cluster where HAMi was installed as release `acme`."""

    user = ""
    may_impersonate = True

    def __init__(self) -> None:
        node = a_node("n1", labels={"gpu": "on", "kubernetes.io/os": "linux"}).to_wire()
        node["metadata"]["annotations"] = {names.HAMI_NODE_REGISTER: REGISTER}
        required = {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": names.LABEL_NODE_AGENT, **ON}]}]
        }
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        selector = {"matchExpressions": [{"key": names.LABEL_ADMISSION, **ON}]}
        leave = yaml.safe_dump({"vendors": {"leaveAlone": [kind.name for kind in kinds()]}})
        extender = {"name": "vgpu-scheduler-extender", "command": ARGUMENTS}
        self.objects: dict[str, list[dict[str, Any]]] = {
            NODES.plural: [node, a_node("n2").to_wire()],
            PODS.plural: [],
            VGPU_CLAIMS.plural: [],
            NAMESPACES.plural: [
                {"metadata": {"name": "left", "labels": {"hami.io/webhook": "ignore"}}}
            ],
            DEPLOYMENTS.plural: [
                a_workload("acme-scheduler", {COMPONENT: "hami-scheduler"}, containers=[extender])
            ],
            DAEMON_SETS.plural: [
                a_workload(
                    "acme-device-plugin",
                    {COMPONENT: "hami-device-plugin"},
                    nodeSelector={"gpu": "on", "kubernetes.io/os": "linux"},
                ),
                a_workload("vgpu-nodeagent", {}, "vgpu-node", affinity=affinity),
            ],
            MUTATING_WEBHOOKS.plural: [
                {"metadata": {"name": "acme-webhook"}, "webhooks": [{"name": "vgpu.hami.io"}]},
                {
                    "metadata": {"name": "vgpu"},
                    "webhooks": [{"name": "mutate-pods.vgpu.dev", "namespaceSelector": selector}],
                },
            ],
            CONFIG_MAPS.plural: [
                a_config_map(
                    *("acme-scheduler-device", "device-config.yaml"),
                    "nvidia: {deviceMemoryScaling: 2, defaultCores: 10}",
                    component="hami-scheduler",
                ),
                a_config_map(
                    *("acme-scheduler", "config.yaml", "kind: KubeSchedulerConfiguration"),
                    component="hami-scheduler",
                ),
                {
                    **a_config_map(
                        "vgpu-config", "config.yaml", OURS + leave, namespace="vgpu-system"
                    )
                },
            ],
        }
        self.objects[CONFIG_MAPS.plural][2]["metadata"]["labels"] = {
            "app.kubernetes.io/part-of": "vgpu"
        }

    def one(self, resource: Resource, name: str) -> dict[str, Any]:
        (found,) = (o for o in self.objects[resource.plural] if o["metadata"]["name"] == name)
        return found

    def acting_as(self, user: str) -> Cluster:
        other = copy.copy(self)
        other.user = user
        return other

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        try:
            return self.one(resource, name)
        except ValueError:
            raise NotFound(name, status=404) from None

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Any:
        if self.user and not self.may_impersonate:
            raise Forbidden(f"cannot impersonate {self.user}", status=403)
        found = [
            copy.deepcopy(obj)
            for obj in self.objects[resource.plural]
            if namespace in (None, obj["metadata"].get("namespace"))
            and _is_selected(label_selector, obj["metadata"].get("labels") or {})
            and _is_named(field_selector, obj)
        ]
        return SimpleNamespace(items=found)


def _is_selected(selector: str, labels: Mapping[str, str]) -> bool:
    if not selector:
        return True
    if " in (" in selector:
        key, _, values = selector.partition(" in (")
        return labels.get(key) in values.rstrip(")").split(",")
    return all(labels.get(key) == value for key, _, value in map(_split, selector.split(",")))


def _split(text: str) -> tuple[str, str, str]:
    return text.partition("=")


def _is_named(selector: str, obj: Mapping[str, Any]) -> bool:
    field, _, value = selector.partition("=")
    found = {
        "": value,
        "metadata.name": obj["metadata"]["name"],
        "spec.nodeName": (obj.get("spec") or {}).get("nodeName", ""),
    }
    return bool(found[field] == value)


async def obstacles(cluster: Cluster, node: str = "") -> Sequence[str]:
    return (await survey(cluster, node=node)).obstacles  # type: ignore[arg-type]


async def test_hami_is_found_whatever_its_release_is_called_and_read_as_our_configuration():
    installed = await read_installation(Cluster())  # type: ignore[arg-type]
    found = configuration_of(installed)
    assert installed.scheduler_name == "acme-scheduler"
    assert found.errors == []
    assert found.config.nvidia.device_memory_scaling == 2
    assert found.config.nvidia.default_cores == 10
    assert found.config.scheduling.node_policy == "Spread"
    assert found.config.scheduling.device_policy == "Binpack"
    assert found.config.scheduling.scheduler_name == ""
    assert sorted(line.split(":")[0] for line in found.left) == [
        "ConfigMap acme/acme-scheduler",
        "Deployment acme/acme-scheduler",
    ]
    assert any("--node-label-selector=gpu=on" in line for line in found.left)


def test_arguments_are_read_in_both_forms():
    deployment = a_workload("s", {}, containers=[{"name": "extender", "command": ARGUMENTS}])
    found = arguments_of(deployment)
    assert found["gpu-scheduler-policy"] == "binpack"
    assert found["http_bind"] == "0.0.0.0:443"
    assert found["debug"] == "true"


async def test_nothing_is_in_the_way_of_a_node_that_is_ready_to_move():
    assert await obstacles(Cluster()) == []
    found = await survey(Cluster())  # type: ignore[arg-type]
    assert [node.metadata.name for node in found.nodes] == ["n1"]


async def test_a_node_that_hami_does_not_serve_is_named():
    assert await obstacles(Cluster(), "n2") == ["node n2: HAMi's device plugin does not serve it"]


async def test_that_hami_serves_no_node_is_said():
    cluster = Cluster()
    cluster.one(NODES, "n1")["metadata"]["labels"].pop("gpu")
    found = await survey(cluster)  # type: ignore[arg-type]
    assert "No node is served by HAMi's device plugin, or was taken over from it" in lines_of(found)


async def test_without_hami_there_is_one_sentence():
    cluster = Cluster()
    del cluster.objects[DAEMON_SETS.plural][0]
    with pytest.raises(CannotAnswer, match="HAMi is not installed"):
        await obstacles(cluster)


def broken_config(cluster: Cluster) -> None:
    cluster.one(CONFIG_MAPS, "acme-scheduler-device")["data"]["device-config.yaml"] = "nvidia: ["


def wrong_value(cluster: Cluster) -> None:
    data = cluster.one(CONFIG_MAPS, "acme-scheduler-device")["data"]
    data["device-config.yaml"] = "nvidia: {deviceSplitCount: many}"


def no_selector(cluster: Cluster) -> None:
    plugin = cluster.one(DAEMON_SETS, "acme-device-plugin")
    plugin["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/os": "linux"}


def agents_everywhere(cluster: Cluster) -> None:
    cluster.one(DAEMON_SETS, "vgpu-nodeagent")["spec"]["template"]["spec"].clear()


def not_installed(cluster: Cluster) -> None:
    cluster.objects[DAEMON_SETS.plural].pop()


def webhook_everywhere(cluster: Cluster) -> None:
    cluster.one(MUTATING_WEBHOOKS, "vgpu")["webhooks"][0].pop("namespaceSelector")


def both_schedulers(cluster: Cluster) -> None:
    text = "kind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: acme-scheduler}]"
    cluster.objects[CONFIG_MAPS.plural].append(
        a_config_map("vgpu-scheduler-config", "scheduler.yaml", text, namespace="vgpu-system")
    )


def our_defaults(cluster: Cluster) -> None:
    cluster.one(CONFIG_MAPS, "vgpu-config")["data"]["config.yaml"] = "{}"


def our_broken_config(cluster: Cluster) -> None:
    cluster.one(CONFIG_MAPS, "vgpu-config")["data"]["config.yaml"] = "nvidia: 3"


def no_right(cluster: Cluster) -> None:
    cluster.may_impersonate = False


def another_name(cluster: Cluster) -> None:
    data = cluster.one(CONFIG_MAPS, "acme-scheduler-device")["data"]
    data["device-config.yaml"] = "nvidia: {resourceMemoryName: acme.com/mem}"


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (broken_config, "ConfigMap acme/acme-scheduler-device: data[device-config.yaml]: Invalid"),
        (wrong_value, "data[device-config.yaml].nvidia.deviceSplitCount: Invalid value: "),
        (no_selector, "DaemonSet acme/acme-device-plugin: it has no nodeSelector"),
        (agents_everywhere, "must run only on nodes with the label vgpu.dev/nodeagent=on"),
        (not_installed, "vgpu is not installed: no DaemonSet vgpu-node/vgpu-nodeagent"),
        (webhook_everywhere, "must read only namespaces with the label vgpu.dev/admission=on"),
        (both_schedulers, "our kube-scheduler must have no profile acme-scheduler"),
        (our_defaults, "scheduling.schedulerAliases must have acme-scheduler"),
        (our_defaults, "views.hamiNodeRegister must be false"),
        (our_defaults, "vendors.leaveAlone must have ascend910a"),
        (our_broken_config, "our configuration: ConfigMap vgpu-config: config.yaml: nvidia"),
        (no_right, "you may not act as system:serviceaccount:vgpu-system:vgpu-operator"),
        (another_name, "nvidia.resourceMemoryName is nvidia.com/gpumem, and HAMi's pods ask for"),
    ],
)
async def test_everything_in_the_way_is_named(break_it: Any, says: str):
    cluster = Cluster()
    break_it(cluster)
    found = await obstacles(cluster)
    assert any(says in line for line in found), found


async def test_pods_that_could_not_be_created_anew_are_named_once_for_each_controller():
    cluster = Cluster()
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "u", "apiVersion": "v1", "controller": True}
    record = {names.HAMI_DEVICES_ALLOCATED: "GPU-0,NVIDIA,100,0:;", names.HAMI_NODE: "n1"}
    for namespace, name, priority in (
        ("team", "a", "?"),
        ("team", "b", "?"),
        ("left", "c", "?"),
        ("team", "fine", ""),
    ):
        annotations = {**record, **({names.HAMI_DEVICE_POLICY: priority} if priority else {})}
        pod = a_pod(
            name,
            namespace=namespace,
            node="n1",
            phase="Running",
            admitted=False,
            annotations=annotations,
            scheduler="acme-scheduler",
            containers=[a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100})],
        ).to_wire()
        pod["metadata"]["ownerReferences"] = [owner]
        cluster.objects[PODS.plural].append(pod)
    found = await survey(cluster)  # type: ignore[arg-type]
    (refused,) = found.refused
    assert str(refused).startswith("pod team/a and 1 more of its controller: ")
    assert names.HAMI_DEVICE_POLICY in refused.why
    assert found.obstacles == []
    lines = list(lines_of(found))
    assert "Node n1: 1 GPU; pods of HAMi's that go on running: 4" in lines
    judged = found.judged["n1"]
    assert "hold what HAMi's pods use until they end (4)" in step_of(judged)
    starts = dataclasses.replace(judged, pods=judged.pods[1:], starting=judged.pods[:1])
    assert "starting (1), hold what HAMi's pods use until they end (4)" in step_of(starts)
    assert "  pod team/fine: GPU GPU-0: 100 MiB, 0 %" in lines
