"""Each check of the doctor finds its fault in a broken cluster and none in a healthy one."""

from __future__ import annotations

import base64
import copy
import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import a_container, a_device, a_node, a_pod
from vgpu_api.config import ClusterConfig
from vgpu_api.names import AGENT_LABELS, AGENT_NAMESPACE, OPERATOR_NAMESPACE
from vgpu_api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    ENDPOINT_SLICES,
    EVENTS,
    GPU_DEVICES,
    LEASES,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
)
from vgpu_client.errors import Forbidden, Unreachable
from vgpu_operator.certificates.issuing import Subject, issue, new_authority
from vgpu_operator.cli.doctor import (
    REQUESTS_DEVICE,
    CheckResult,
    Snapshot,
    allocating_missing,
    findings,
    rights_missing,
)
from vgpu_operator.cli.uninstall import BINDINGS, DAEMON_SETS, DEPLOYMENTS, POLICIES

MANIFESTS = Path(__file__).parents[3] / "manifests" / "base"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OURS = {"app.kubernetes.io/part-of": "vgpu"}
Objects = dict[tuple[str, str], Any]


def at(seconds_ago: float) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")


def a_crd(plural: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{plural}.vgpu.dev", "labels": OURS},
        "spec": {"group": "vgpu.dev", "versions": [{"name": "v1alpha1", "served": True}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    }


def a_slice(service: str) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service}
    endpoint = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    return {"metadata": {"name": service, "labels": labels}, "endpoints": [endpoint]}


def a_lease(name: str, holder: str, seconds_ago: float = 1) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": at(seconds_ago)}
    return {"metadata": {"name": name}, "spec": spec}


def an_agent() -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at(7200)}
    return {
        "metadata": {"uid": "a", "namespace": AGENT_NAMESPACE, "labels": dict(AGENT_LABELS)},
        "spec": {"nodeName": "n"},
        "status": {"conditions": [ready]},
    }


def a_workload(name: str, namespace: str, spec: Any, status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": OURS},
        "spec": {**spec, "template": {"spec": {"containers": [{"image": "vgpu/x"}]}}},
        "status": status,
    }


def a_secret(*, days: float) -> dict[str, Any]:
    start = NOW - timedelta(days=90)
    authority = new_authority(now=start, life=timedelta(days=4000))
    life = timedelta(days=90 + days)
    pair = issue(authority, Subject("a", ("a",)), now=start, life=life)
    return {"data": {"tls.crt": base64.b64encode(pair.certificate).decode()}}


@functools.cache
def manifests() -> list[dict[str, Any]]:
    files = sorted(MANIFESTS.rglob("*.yaml"))
    return [each for file in files for each in yaml.safe_load_all(file.read_text()) if each]


def of_the_manifests(kind: str) -> list[dict[str, Any]]:
    return [copy.deepcopy(each) for each in manifests() if each.get("kind") == kind]


def a_scheduler(verb: str = "preempt") -> str:
    line = f"  preemptVerb: {verb}\n" if verb else ""
    return f"kind: KubeSchedulerConfiguration\nextenders:\n- filterVerb: filter\n{line}"


def healthy() -> Objects:
    node = a_node("n", allocatable={"nvidia.com/gpu": "10"}).to_wire()
    node["status"]["nodeInfo"] = {
        "kubeletVersion": "v1.34.0",
        "containerRuntimeVersion": "containerd://2.2.9",
    }
    hook = {"name": "pods.vgpu.dev", "clientConfig": {"caBundle": "eA=="}}
    configuration = {"metadata": {"name": "vgpu", "labels": OURS}, "webhooks": [hook]}
    scheduler = a_workload("vgpu-scheduler", OPERATOR_NAMESPACE, {}, {})
    volumes = [{"name": "config", "configMap": {"name": "mounted"}}, {"name": "tls", "secret": {}}]
    scheduler["spec"]["template"]["spec"]["volumes"] = volumes
    return {
        (CUSTOM_RESOURCE_DEFINITIONS.plural, ""): [a_crd("vgpuclaims"), a_crd("gpudevices")],
        (GPU_DEVICES.plural, ""): [a_device(node="n").to_wire()],
        (VGPU_CLAIMS.plural, ""): [],
        (NODES.plural, ""): [node],
        (PODS.plural, ""): [an_agent(), {"metadata": {"uid": "u"}, "spec": {"nodeName": "n"}}],
        (EVENTS.plural, ""): [],
        (DEPLOYMENTS.plural, ""): [
            a_workload(
                "vgpu-operator", OPERATOR_NAMESPACE, {"replicas": 2}, {"availableReplicas": 2}
            ),
            scheduler,
        ],
        (CONFIG_MAPS.plural, OPERATOR_NAMESPACE): [
            # A ReplicaSet of an earlier rollout, which kustomize leaves behind.
            {"metadata": {"name": "before"}, "data": {"scheduler.yaml": a_scheduler(verb="")}},
            {"metadata": {"name": "mounted"}, "data": {"scheduler.yaml": a_scheduler()}},
        ],
        (DAEMON_SETS.plural, ""): [
            a_workload(
                "vgpu-nodeagent",
                AGENT_NAMESPACE,
                {},
                {"desiredNumberScheduled": 1, "numberAvailable": 1},
            )
        ],
        (MUTATING_WEBHOOKS.plural, ""): [configuration],
        (VALIDATING_WEBHOOKS.plural, ""): [copy.deepcopy(configuration)],
        (POLICIES.plural, ""): of_the_manifests(POLICIES.kind),
        (BINDINGS.plural, ""): of_the_manifests(BINDINGS.kind),
        (LEASES.plural, OPERATOR_NAMESPACE): [a_lease("vgpu-operator", "one")],
        (ENDPOINT_SLICES.plural, OPERATOR_NAMESPACE): [
            a_slice("vgpu-extender"),
            a_slice("vgpu-webhook"),
        ],
    }


def found(objects: Objects, *, version: str = "v1.34.0", secrets: Any = None) -> list[CheckResult]:
    seen = Snapshot(NOW, version, ClusterConfig(), objects, secrets or {})
    return [each for each in findings(seen) if each.level != "ok"]


def test_nothing_is_found_in_a_healthy_cluster():
    assert found(healthy(), secrets={"vgpu-webhook-tls": a_secret(days=30)}) == []


class Account:
    """An API server that reviews the rights of the operator's account.

    Args:
        role: The ClusterRole whose rights the account has; None: none.
    """

    def __init__(self, role: dict[str, Any] | None, *, away: bool = False) -> None:
        self.rules = [] if role is None else role["rules"]
        self.away = away

    async def create(self, _: Any, review: Any, **__: Any) -> dict[str, Any]:
        """Answer a review."""
        if self.away:
            raise Unreachable("no answer in time")
        spec = review["spec"]
        assert spec["user"] == "system:serviceaccount:vgpu-system:vgpu-operator"
        asked = spec["resourceAttributes"]
        parts = filter(None, (asked["resource"], asked.get("subresource")))
        resource = "/".join(parts)
        allowed = any(
            asked["group"] in rule["apiGroups"]
            and resource in rule["resources"]
            and asked["verb"] in rule["verbs"]
            for rule in self.rules
        )
        return {"status": {"allowed": allowed}}


def rights_to_preempt() -> dict[str, Any]:
    text = (MANIFESTS.parent / "components" / "preemption" / "rights.yaml").read_text()
    return next(each for each in yaml.safe_load_all(text) if each["kind"] == "ClusterRole")


async def results_of_rights(account: Account, **rules: Any) -> list[CheckResult]:
    config = ClusterConfig.model_validate({"scheduling": {"preemption": rules}})
    missing = await rights_missing(account, config)  # type: ignore[arg-type]
    seen = Snapshot(NOW, "v1.34.0", config, healthy(), {}, missing)
    return [each for each in findings(seen) if each.level != "ok"]


@pytest.mark.parametrize("budgets", ["Respect", "Prefer"])
async def test_the_component_grants_every_right_to_preempt(budgets: str):
    assert (
        await results_of_rights(Account(rights_to_preempt()), enabled=True, budgets=budgets) == []
    )


CLAIMS = MANIFESTS.parent / "overlays" / "claims"


def of_claims() -> tuple[Objects, dict[str, Any]]:
    """Return a healthy cluster with the objects of overlays/claims, and the operator's role."""
    objects = healthy()
    added = [
        each
        for name in ("policies.yaml", "classes.yaml")
        for each in yaml.safe_load_all((CLAIMS / name).read_text())
    ]
    for resource in (POLICIES, BINDINGS, DEVICE_CLASSES):
        of_kind = [each for each in added if each["kind"] == resource.kind]
        objects[resource.plural, ""] = [*objects.get((resource.plural, ""), []), *of_kind]
    (agents,) = change(objects, DAEMON_SETS)
    agents["spec"]["template"]["spec"]["containers"][0]["args"] = ["--dra"]
    rules = [each["value"] for each in yaml.safe_load((CLAIMS / "rights.yaml").read_text())]
    return objects, {"rules": rules}


async def results_of_claims(
    objects: Objects, role: dict[str, Any] | None, *, version: str = "v1.36.0"
) -> list[CheckResult]:
    config = ClusterConfig.model_validate({"scheduling": {"mode": "Claims"}})
    missing = await allocating_missing(Account(role), config)  # type: ignore[arg-type]
    seen = Snapshot(NOW, version, config, objects, {}, (), missing)
    return [each for each in findings(seen) if each.level != "ok"]


async def test_the_overlay_has_all_that_mode_claims_needs():
    assert await results_of_claims(*of_claims()) == []


def on_node(objects: Objects, label: str, *claims: dict[str, str]) -> Objects:
    """Give the first node a label for its allocator, and claims with these annotations."""
    node = change(objects, NODES)[0]
    node["metadata"]["labels"] = {"vgpu.dev/allocator": label}
    objects[VGPU_CLAIMS.plural, ""] = [
        {
            "metadata": {"name": f"c{number}", "namespace": "default", "annotations": annotations},
            "status": {"allocation": {"nodeName": node["metadata"]["name"]}},
        }
        for number, annotations in enumerate(claims)
    ]
    return objects


@pytest.mark.parametrize(
    ("label", "claims", "said"),
    [
        ("Scheduler", [], "publishes no ResourceSlices"),
        ("Scheduler", [{}], "kube-scheduler gets its GPUs once its claims are gone (1)"),
        ("scheduler", [], "no such value, so the operator allocates its GPUs"),
        (
            "Ledger",
            [{"vgpu.dev/scheduler-claim": "gpu"}],
            "claims of kube-scheduler's keep its GPUs (1)",
        ),
    ],
)
async def test_a_node_whose_label_does_not_do_what_it_says_is_reported(
    label: str, claims: list[dict[str, str]], said: str
):
    objects, role = of_claims()
    found = await results_of_claims(on_node(objects, label, *claims), role)
    assert any(said in each.message for each in found), found


def test_in_another_mode_nobody_allocates_the_devices_of_a_labelled_node():
    (result,) = found(on_node(healthy(), "Scheduler"))
    assert "nobody allocates its GPUs: scheduling.mode is Extender" in result.message


async def test_what_mode_claims_lacks_is_found_with_what_to_do():
    objects, _ = of_claims()
    objects[DEVICE_CLASSES.plural, ""] = []
    objects[POLICIES.plural, ""] = [
        each
        for each in objects[POLICIES.plural, ""]
        if each["metadata"]["name"] != "vgpu-allocations"
    ]
    (agents,) = change(objects, DAEMON_SETS)
    agents["spec"]["template"]["spec"]["containers"][0]["args"] = []
    found = await results_of_claims(objects, None, version="v1.35.4")
    said = "\n".join(each.message for each in found)
    assert "v1.35.4: mode Claims needs Kubernetes 1.36 or later" in said
    assert "the operator may not get resourceclaims, list resourceclaims" in said
    assert "patch resourceclaims/binding" in said
    assert "there is no DeviceClass vgpu.dev" in said
    assert "prepares no ResourceClaims" in said
    assert "vgpu-allocations: not installed" in said
    assert all(each.remedy for each in found)


async def test_preemption_without_its_rights_is_found_with_what_to_do():
    (only,) = await results_of_rights(Account(None), enabled=True)
    assert (only.check, only.level) == ("preemption", "error")
    assert only.message.endswith(
        "the operator may not list poddisruptionbudgets, watch poddisruptionbudgets, create "
        "pods/eviction"
    )
    assert "manifests/components/preemption" in only.remedy


async def test_pods_must_be_deleted_only_where_budgets_may_be_broken():
    role = rights_to_preempt()
    role["rules"] = [rule for rule in role["rules"] if "delete" not in rule["verbs"]]
    assert await results_of_rights(Account(role), enabled=True) == []
    (only,) = await results_of_rights(Account(role), enabled=True, budgets="Prefer")
    assert only.message.endswith("the operator may not delete pods")


async def test_no_rights_are_missed_while_preemption_is_off():
    assert await results_of_rights(Account(None)) == []


async def test_rights_that_cannot_be_reviewed_are_unknown():
    (only,) = await results_of_rights(Account(None, away=True), enabled=True)
    assert (only.check, only.level) == ("preemption", "unknown")


def change(objects: Objects, resource: Any, namespace: str = "") -> Any:
    return objects[resource.plural, namespace]


def no_kind(o: Objects) -> None:
    change(o, CUSTOM_RESOURCE_DEFINITIONS).pop()


def another_version(o: Objects) -> None:
    change(o, CUSTOM_RESOURCE_DEFINITIONS)[0]["spec"]["versions"] = [{"name": "v2", "served": True}]


def old_kubelet(o: Objects) -> None:
    change(o, NODES)[0]["status"]["nodeInfo"]["kubeletVersion"] = "v1.27.3"


def old_containerd(o: Objects) -> None:
    change(o, NODES)[0]["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.6.20"


def cdi_is_off(o: Objects) -> None:
    change(o, NODES)[0]["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.7.1"
    message = "CDI device injection failed: unresolvable CDI devices vgpu.dev/slot=1"
    event = {"message": message, "involvedObject": {"uid": "u"}, "lastTimestamp": at(5)}
    change(o, EVENTS).append(event)


def node_down(o: Objects) -> None:
    change(o, NODES)[0]["status"]["conditions"][0]["status"] = "Unknown"


def too_few(o: Objects) -> None:
    change(o, DEPLOYMENTS)[0]["status"] = {"availableReplicas": 1}


def nothing_runs(o: Objects) -> None:
    change(o, DEPLOYMENTS).clear()
    change(o, DAEMON_SETS).clear()


def no_leader(o: Objects) -> None:
    o[LEASES.plural, OPERATOR_NAMESPACE] = [a_lease("vgpu-operator", "one", 600)]


def never_a_leader(o: Objects) -> None:
    o[LEASES.plural, OPERATOR_NAMESPACE] = []


def no_extender(o: Objects) -> None:
    change(o, ENDPOINT_SLICES, OPERATOR_NAMESPACE)[0]["endpoints"] = []


def extender_not_reached(o: Objects) -> None:
    message = 'Post "https://vgpu-extender.vgpu-system/filter": x509: unknown authority'
    event = {"reason": "FailedScheduling", "message": message, "lastTimestamp": at(30)}
    change(o, EVENTS).append(event)


def no_preempt_verb(o: Objects) -> None:
    change(o, CONFIG_MAPS, OPERATOR_NAMESPACE)[1]["data"]["scheduler.yaml"] = a_scheduler(verb="")


def preempt_verb_in_a_comment(o: Objects) -> None:
    text = a_scheduler().replace("preemptVerb", "# preemptVerb")
    change(o, CONFIG_MAPS, OPERATOR_NAMESPACE)[1]["data"]["scheduler.yaml"] = text


def no_webhooks(o: Objects) -> None:
    change(o, MUTATING_WEBHOOKS).clear()


def no_bundle(o: Objects) -> None:
    change(o, VALIDATING_WEBHOOKS)[0]["webhooks"][0]["clientConfig"] = {}


def webhook_away(o: Objects) -> None:
    endpoints = change(o, ENDPOINT_SLICES, OPERATOR_NAMESPACE)[1]["endpoints"]
    endpoints[0]["conditions"] = {"ready": False}


def policy_warns_only(o: Objects) -> None:
    (binding,) = (b for b in change(o, BINDINGS) if b["metadata"]["name"] == "vgpu-gates")
    binding["spec"]["validationActions"] = ["Warn"]


def unmarked_pod(o: Objects) -> None:
    change(o, PODS).append(a_gpu_pod("p", admitted=False))


def silent_agent(o: Objects) -> None:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": at(3600)}
    change(o, PODS)[0]["status"]["conditions"] = [ready]


def no_agent(o: Objects) -> None:
    del change(o, PODS)[0]


def no_plugin(o: Objects) -> None:
    change(o, NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": "0"}


def another_plugin(o: Objects) -> None:
    """Two GPUs of ten slots each, and another plugin's one whole device offered for them."""
    devices = [a_device(uuid=f"GPU-{n}", node="n", slots=10) for n in range(2)]
    o[GPU_DEVICES.plural, ""] = [device.to_wire() for device in devices]
    change(o, NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": "1"}


def sick_device(o: Objects) -> None:
    o[GPU_DEVICES.plural, ""] = [a_device(node="n", healthy=False).to_wire()]


def a_gpu_pod(name: str, **fields: Any) -> dict[str, Any]:
    containers = [a_container(limits={"nvidia.com/gpu": 1})]
    return a_pod(name, namespace="d", containers=containers, **fields).to_wire()


def a_claim_object(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "c", "namespace": "d"}, "status": status}


def violation(o: Objects) -> None:
    change(o, VGPU_CLAIMS).append(
        a_claim_object(conditions=[{"type": "Violated", "status": "True"}])
    )


def long_wait(o: Objects) -> None:
    condition = {"type": "Allocated", "status": "False", "reason": "CardInsufficientMemory"}
    condition["lastTransitionTime"] = at(601)
    change(o, VGPU_CLAIMS).append(a_claim_object(conditions=[condition]))


def not_released(o: Objects) -> None:
    claim = a_claim_object()
    claim["metadata"]["deletionTimestamp"] = at(700)
    change(o, VGPU_CLAIMS).append(claim)


def nvidias_plugin(o: Objects) -> None:
    other = a_workload("gpu-plugin", "kube-system", {}, {})
    other["metadata"]["labels"] = {}
    image = "registry.example/nvidia/k8s-device-plugin:v0.17.0"
    other["spec"]["template"]["spec"]["containers"][0]["image"] = image
    change(o, DAEMON_SETS).append(other)


def a_name_unseen(o: Objects) -> None:
    names = sorted(ClusterConfig().request_resources() - {"nvidia.com/gpumem"})
    expression = f"[{', '.join(repr(name) for name in names)}].exists(name, true)"
    hook = change(o, MUTATING_WEBHOOKS)[0]["webhooks"][0]
    hook["matchConditions"] = [{"name": REQUESTS_DEVICE, "expression": expression}]


def hamis_webhook(o: Objects) -> None:
    hook = {"name": "vgpu.hami.io"}
    change(o, MUTATING_WEBHOOKS).append({"metadata": {"name": "acme"}, "webhooks": [hook]})


def hamis_plugin(o: Objects) -> None:
    other = a_workload("acme-device-plugin", "kube-system", {}, {})
    other["metadata"]["labels"] = {"app.kubernetes.io/component": "hami-device-plugin"}
    change(o, DAEMON_SETS).append(other)


def beside_hami(o: Objects) -> None:
    """Restrict the agents to nodes that were taken over, as components/beside-hami does."""
    expression = {"key": "vgpu.dev/nodeagent", "operator": "In", "values": ["on"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    for daemon_set in change(o, DAEMON_SETS):
        daemon_set["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}


def hamis_config_map(o: Objects) -> None:
    metadata = {"namespace": "kube-system", "name": "hami-scheduler-device"}
    o[CONFIG_MAPS.plural, ""] = [{"metadata": metadata, "data": {}}]


@pytest.mark.parametrize(
    ("break_it", "check", "level", "says"),
    [
        (no_kind, "kinds", "error", "gpudevices.vgpu.dev is not installed"),
        (another_version, "kinds", "error", "served as v2, not as v1alpha1"),
        (old_kubelet, "nodes", "error", "kubelet v1.27.3"),
        (old_containerd, "nodes", "error", "does not support CDI"),
        (cdi_is_off, "nodes", "error", "cannot resolve CDI devices"),
        (node_down, "nodes", "error", "not ready"),
        (too_few, "programs", "error", "1 of 2 available"),
        (nothing_runs, "programs", "warning", "does not run"),
        (no_leader, "leader", "error", "the leader for 10m"),
        (never_a_leader, "leader", "error", "ever been the leader"),
        (no_extender, "extender", "error", "no ready endpoint"),
        (extender_not_reached, "extender", "error", "unknown authority"),
        (no_preempt_verb, "preemption", "error", "has no preemptVerb"),
        (preempt_verb_in_a_comment, "preemption", "error", "has no preemptVerb"),
        (no_webhooks, "webhooks", "error", "no MutatingWebhookConfiguration"),
        (no_bundle, "webhooks", "error", "no caBundle"),
        (a_name_unseen, "webhooks", "error", "does not see pods that ask for nvidia.com/gpumem"),
        (webhook_away, "webhooks", "error", "vgpu-webhook has no ready endpoint"),
        (policy_warns_only, "policies", "error", "Binding vgpu-gates: missing, or does not deny"),
        (silent_agent, "agents", "error", "the agent is not ready for 60m"),
        (no_agent, "agents", "error", "node n: no agent runs"),
        (no_plugin, "agents", "error", "offers no nvidia.com/gpu"),
        (another_plugin, "agents", "error", "offers 1 nvidia.com/gpu, its healthy GPUs have 20"),
        (sick_device, "devices", "error", "is Unhealthy"),
        (violation, "claims", "error", "1 claim violating limits: d/c"),
        (long_wait, "claims", "warning", "waiting for over 10m"),
        (not_released, "claims", "error", "terminating for over 10m: d/c"),
        (unmarked_pod, "pods", "warning", "without the label vgpu.dev/admitted and get none: d/p"),
        (nvidias_plugin, "neighbours", "error", "also registers nvidia.com/gpu"),
        (hamis_webhook, "neighbours", "error", "HAMi's webhook acme still runs"),
        (hamis_plugin, "neighbours", "error", "HAMi's device plugin kube-system/acme-device-plug"),
        (hamis_config_map, "configuration", "warning", "kube-system/hami-scheduler-device"),
    ],
)
def test_a_fault_is_found_with_what_to_do(
    break_it: Callable[[Objects], None], check: str, level: str, says: str
):
    objects = copy.deepcopy(healthy())
    break_it(objects)
    (only,) = found(objects)
    assert (only.check, only.level) == (check, level)
    assert says in only.message
    assert only.remedy


def test_pods_that_wait_for_hamis_scheduler_are_hamis():
    objects = copy.deepcopy(healthy())
    unmarked_pod(objects)
    (pod,) = (p for p in objects[PODS.plural, ""] if p["metadata"].get("name") == "p")
    pod["spec"]["schedulerName"] = "acme"
    assert [each.check for each in found(objects)] == ["pods"]
    scheduler = a_workload("acme-scheduler", "kube-system", {}, {})
    scheduler["metadata"]["labels"] = {"app.kubernetes.io/component": "hami-scheduler"}
    command = ["scheduler", "--scheduler-name=acme"]
    scheduler["spec"]["template"]["spec"]["containers"] = [{"name": "e", "command": command}]
    change(objects, DEPLOYMENTS).append(scheduler)
    assert found(objects) == []


def test_a_hami_that_nodes_are_taken_over_from_is_no_fault():
    objects = copy.deepcopy(healthy())
    for step in (beside_hami, hamis_webhook, hamis_plugin, hamis_config_map):
        step(objects)
    assert found(objects) == []


def test_each_page_that_the_command_line_names_is_there():
    root = Path(__file__).parents[3]
    named = {
        page
        for source in (root / "operator" / "vgpu_operator").rglob("*.py")
        for page in re.findall(r"(?<!/)\bdocs/[\w/.-]+\.md(?:#[\w-]+)?", source.read_text())
    }
    missing = [page for page in named if not _is_there(root, *page.partition("#")[::2])]
    assert missing == []


def _is_there(root: Path, page: str, section: str) -> bool:
    if not (root / page).is_file():
        return False
    headings = re.findall(r"^#+ (.*)$", (root / page).read_text(), re.MULTILINE)
    return not section or section in {
        re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings
    }


@pytest.mark.parametrize("resource", [POLICIES, BINDINGS], ids=lambda each: each.kind)
def test_each_policy_and_binding_of_the_manifests_is_missed(resource: Any):
    everything = of_the_manifests(resource.kind)
    assert everything
    for left_out in everything:
        objects = healthy()
        change(objects, resource).remove(left_out)
        (only,) = found(objects)
        assert (only.check, only.level) == ("policies", "error")
        assert f"{resource.kind} {left_out['metadata']['name']}: " in only.message


@pytest.mark.parametrize(
    "pod",
    [
        a_gpu_pod("marked"),
        a_gpu_pod("bound", admitted=False, node="n"),
        a_gpu_pod("ended", admitted=False, phase="Failed"),
        a_gpu_pod("opted-out", admitted=False, labels={"hami.io/webhook": "ignore"}),
        a_pod("without-gpu", admitted=False, containers=[a_container()]).to_wire(),
    ],
    ids=lambda pod: pod["metadata"]["name"],
)
def test_only_pods_that_wait_for_gpus_need_the_mark(pod: dict[str, Any]):
    objects = healthy()
    change(objects, PODS).append(pod)
    assert found(objects) == []


def test_a_pod_from_before_the_mark_that_has_its_devices_is_not_named():
    objects = healthy()
    change(objects, PODS).append(a_gpu_pod("p", uid="before", admitted=False))
    change(objects, VGPU_CLAIMS).append(
        a_claim_object(allocation={"id": "a"}, reservedFor={"podName": "p", "podUID": "before"})
    )
    assert found(objects) == []


def test_an_old_api_server_is_named():
    (only,) = found(healthy(), version="v1.30.2")
    assert (only.check, only.level) == ("api server", "error")


@pytest.mark.parametrize(
    ("days", "level", "says"), [(3, "warning", "expires in 3d"), (-2, "error", "expired")]
)
def test_a_certificate_is_named_before_it_expires_and_after(days: float, level: str, says: str):
    (only,) = found(healthy(), secrets={"vgpu-webhook-tls": a_secret(days=days)})
    assert (only.check, only.level) == ("certificates", level)
    assert says in only.message


def test_what_may_not_be_read_is_unknown_and_no_verdict():
    objects = healthy()
    objects[LEASES.plural, OPERATOR_NAMESPACE] = Forbidden("leases is forbidden", status=403)
    secrets = {"vgpu-webhook-tls": Forbidden("secrets is forbidden", status=403)}
    assert {(each.check, each.level) for each in found(objects, secrets=secrets)} == {
        ("leader", "unknown"), ("certificates", "unknown")
    }  # fmt: skip
