"""Admission refuses users' mistakes, naming the field, the value and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_local.cluster import LocalCluster
from vgpu_local.kubectl import Kubectl
from vgpu_local.nodes import t4_node

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([t4_node("t4")]) as cluster:
        yield cluster


@pytest.fixture
def refused(cluster: LocalCluster) -> Iterator[Any]:
    """Apply an object with kubectl, check that it fails, and return kubectl's message."""
    kubectl = Kubectl.find(cluster.kubeconfig)

    def apply(obj: dict[str, Any]) -> str:
        done = kubectl.run("apply", "-f", "-", stdin=json.dumps(obj))
        assert done.returncode != 0, done.stdout
        return done.stderr

    yield apply
    assert cluster.server.objects("pods", "default") == []
    assert cluster.server.objects("vgpuclaims.vgpu.dev", "default") == []


def claim(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "VGPUClaim",
        "metadata": {"name": "wrong", "namespace": "default"},
        "spec": spec,
    }


def pod(
    limits: dict[str, Any], annotations: dict[str, str] | None = None, scheduler: str = ""
) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "wrong", "namespace": "default", "annotations": annotations or {}},
        "spec": {"containers": [container], **({"schedulerName": scheduler} if scheduler else {})},
    }


def test_a_configuration_that_no_process_could_use_does_not_roll(
    refused: Callable[[dict[str, Any]], str], cluster: LocalCluster
) -> None:
    found = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "vgpu-config-new", "namespace": "vgpu-system"},
        "data": {"config.yaml": "nvidia:\n  defaultMem: lots\n"},
    }
    assert 'nvidia.defaultMem: Invalid value: "lots": ' in refused(found)
    (webhook,) = cluster.webhooks
    logged = [line for line in webhook.said().splitlines() if "nvidia.defaultMem" in line]
    assert len(logged) == 1  # the user's mistake is logged, and no failure of the handler
    assert " INFO " in logged[0]


@pytest.mark.parametrize("memory", ["8 GiB", "8gb", "lots", "-8Gi"])
def test_a_quantity_that_cannot_be_read_is_refused_by_its_field(
    refused: Callable[[dict[str, Any]], str], memory: str
) -> None:
    said = refused(claim(requests=[{"memory": memory}]))
    assert "spec.requests[0].memory" in said
    assert memory in said


@pytest.mark.parametrize("memory", ["512Ki", "1500k"])
def test_a_size_below_or_between_mib_is_refused(
    refused: Callable[[dict[str, Any]], str], memory: str
) -> None:
    said = refused(claim(requests=[{"memory": memory}]))
    assert "memory" in said
    assert "MiB" in said


def test_a_policy_that_does_not_exist_is_refused_with_those_that_do(
    refused: Callable[[dict[str, Any]], str],
) -> None:
    said = refused(claim(requests=[{}], placement={"node": "Tightest"}))
    assert "spec.placement.node" in said
    assert "Tightest" in said
    assert "Binpack" in said


def test_both_forms_of_memory_are_refused(refused: Callable[[dict[str, Any]], str]) -> None:
    said = refused(claim(requests=[{"memory": "8Gi", "memoryPercent": 50}]))
    assert "memory or memoryPercent, not both" in said


def test_a_claim_of_another_namespace_cannot_be_used(
    refused: Callable[[dict[str, Any]], str],
) -> None:
    said = refused(pod({}, {"vgpu.dev/claim": "other/theirs"}))
    assert "vgpu.dev/claim" in said
    assert "another namespace cannot be used" in said


def test_an_unknown_policy_on_a_pod_is_refused_by_its_annotation(
    refused: Callable[[dict[str, Any]], str],
) -> None:
    said = refused(pod({"nvidia.com/gpu": 1}, {"hami.io/gpu-scheduler-policy": "tightest"}))
    assert "hami.io/gpu-scheduler-policy" in said
    assert "tightest" in said


def test_a_percentage_above_100_is_refused_on_a_pod(
    refused: Callable[[dict[str, Any]], str],
) -> None:
    said = refused(pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 130}))
    assert "nvidia.com/gpumem-percentage" in said
    assert "130" in said


def test_a_priority_above_what_the_administrator_allows_is_refused_by_its_bound(
    refused: Callable[[dict[str, Any]], str],
) -> None:
    said = refused(claim(requests=[{"memory": "1Gi"}], schedulingPriority=1001))
    assert "spec.schedulingPriority: Invalid value: 1001: must be no more than 1000" in said


@pytest.mark.parametrize(
    ("wrong", "warning"),
    [
        (
            pod({"nvidia.com/gpu": 1}, {"nvidia.com/use-gputyp": "T4"}),
            "metadata.annotations[nvidia.com/use-gputyp]: vgpu has no such annotation: "
            "did you mean nvidia.com/use-gputype?",
        ),
        (
            pod({}, {"vgpu.dev/clam": "small"}),
            "metadata.annotations[vgpu.dev/clam]: vgpu has no such annotation: "
            "did you mean vgpu.dev/claim?",
        ),
        (
            pod({"nvidia.com/gpumemory": 1}),
            "spec.containers[0].resources.limits[nvidia.com/gpumemory]: vgpu has no such "
            "resource: did you mean nvidia.com/gpumem?",
        ),
        (
            pod({"nvidia.com/gpu": 1}, scheduler="yunikorn"),
            "spec.schedulerName: yunikorn: the pod gets a GPU only if this scheduler calls the "
            "extender of vgpu",
        ),
    ],
    ids=["annotation", "ours", "resource", "scheduler"],
)
def test_what_would_be_overlooked_is_warned_about_and_admitted(
    cluster: LocalCluster, wrong: dict[str, Any], warning: str
) -> None:
    command = ["apply", "--dry-run=server", "-f", "-"]
    done = Kubectl.find(cluster.kubeconfig).run(*command, stdin=json.dumps(wrong))
    assert done.returncode == 0, done.stderr
    assert f"Warning: {warning}" in done.stderr


@pytest.mark.parametrize("resource", ["vpc.amazonaws.com/efa", "nvidia.com/mig-1g.5gb"])
def test_another_vendors_pod_is_neither_changed_nor_warned_about(
    cluster: LocalCluster, resource: str
) -> None:
    command = ["apply", "--dry-run=server", "-o", "json", "-f", "-"]
    done = Kubectl.find(cluster.kubeconfig).run(*command, stdin=json.dumps(pod({resource: 1})))
    assert (done.returncode, done.stderr) == (0, "")
    (container,) = json.loads(done.stdout)["spec"]["containers"]
    assert "env" not in container


def test_mps_is_refused_with_what_to_use_instead(refused: Callable[[dict[str, Any]], str]) -> None:
    said = refused(claim(requests=[{"mode": "MPS"}]))
    assert "spec.requests[0].mode" in said
    assert "Shared" in said
    said = refused(pod({"nvidia.com/gpu": 1}, {"nvidia.com/vgpu-mode": "mps"}))
    assert 'metadata.annotations[nvidia.com/vgpu-mode]: Unsupported value: "mps"' in said
    assert "write shared" in said


def test_a_variable_of_hamis_that_means_nothing_here_is_warned_of(cluster: LocalCluster) -> None:
    kubectl = Kubectl.find(cluster.kubeconfig)
    given = pod({"nvidia.com/gpu": 1})
    given["spec"]["containers"][0]["env"] = [{"name": "CUDA_OVERSUBSCRIBE", "value": "true"}]
    done = kubectl.run("apply", "-f", "-", "--dry-run=server", stdin=json.dumps(given))
    assert done.returncode == 0, done.stderr
    assert "Warning: spec.containers[0].env[CUDA_OVERSUBSCRIBE]: has no effect" in done.stderr


def test_a_namespace_with_the_label_of_hamis_is_left_alone(cluster: LocalCluster) -> None:
    labels = {"hami.io/webhook": "ignore"}
    metadata = {"name": "left-alone", "labels": labels}
    cluster.apply_object({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    unlike = pod({"nvidia.com/gpu": 1}, {"nvidia.com/use-gputyp": "T4"})
    unlike["metadata"]["namespace"] = "left-alone"
    command = ["apply", "--dry-run=server", "-o", "json", "-f", "-"]
    done = Kubectl.find(cluster.kubeconfig).run(*command, stdin=json.dumps(unlike))
    assert (done.returncode, done.stderr) == (0, "")
    (container,) = json.loads(done.stdout)["spec"]["containers"]
    assert "env" not in container


@pytest.mark.parametrize(("label", "is_admitted"), [("allowed", True), ("true", False)])
def test_limits_are_switched_off_only_where_the_namespace_is_labelled(
    cluster: LocalCluster, label: str, is_admitted: bool
) -> None:
    name = f"control-{label}"
    metadata = {"name": name, "labels": {"vgpu.dev/disable-control": label}}
    cluster.apply_object({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    uncontrolled = pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})
    uncontrolled["metadata"]["namespace"] = name
    (container,) = uncontrolled["spec"]["containers"]
    container["env"] = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    command = ["apply", "--dry-run=server", "-f", "-"]
    done = Kubectl.find(cluster.kubeconfig).run(*command, stdin=json.dumps(uncontrolled))
    refusal = "limits cannot be switched off in this namespace" in done.stderr
    assert (done.returncode == 0, refusal) == (is_admitted, not is_admitted)


def test_a_users_mistake_is_one_line_at_info_in_the_log_of_the_webhooks(
    cluster: LocalCluster, refused: Callable[[dict[str, Any]], str]
) -> None:
    """Without our filter, Kopf logs a refusal as a failure of its handler, at level ERROR."""
    (webhook,) = cluster.webhooks
    before = len(webhook.log.read_text())
    refused(pod({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "101"}))
    said = [line for line in webhook.log.read_text()[before:].splitlines() if "refused" in line]
    assert len(said) == 1
    assert " INFO " in said[0]
    assert "pod default/wrong refused: " in said[0]
    assert "101" in said[0]
    assert " ERROR " not in webhook.log.read_text()[before:]
