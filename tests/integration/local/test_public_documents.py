"""Every pod of HAMi's and Alibaba's public guides either runs on a whole cluster or shows why not.

`tests/unit/dialects/test_seed_documents.py` lists what each asks for. Workloads are applied as the
pods that their controllers would create, because the stand-in has no controllers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from vgpu_api.resources import VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubectl import Kubectl
from vgpu_local.nodes import A100_CUT, T4, a100_server, gpu_node
from vgpu_local.programs import ROOT
from vgpu_local.steps import claim_name, delete_pod, running
from vgpu_operator.insight.workloads import pods_of

EXAMPLES = ROOT / "examples"

RUN = (
    *("ack/2.3-memory", "ack/3.2-numa", "ack/6.3-job", "ack/several-devices"),
    *("dialects/ack", "dialects/volcano", "dialects/volcano-scheduler"),
    *("hami-configuration/4.3-pod", "hami-configuration/6.5-variables"),
    *("hami-guide/1.2-common-patterns", "hami-guide/2.4-percentage", "hami-guide/4.1-exclusive"),
    *("hami-guide/4.2-shared", "hami-guide/6.1-device-policies", "hami-guide/6.3-numa"),
    *("hami-guide/6.4-mig", "hami-guide/6.5-modes", "hami-guide/6.5-runtime-class"),
    *("hami-guide/7.1-force", "hami-guide/7.2-amounts", "hami-guide/7.2-policies"),
    *("hami-guide/7.4-migration", "hami-guide/8.2-nvidia"),
)
WAIT = {
    "hami-guide/5.3-pod-choices": ["CardTypeMismatch"],
    "hami-guide/6.2-types": ["CardTypeMismatch"],
    "hami-guide/6.2-uuids": ["CardUuidMismatch"],
    "hami-configuration/6.4-annotations": ["CardTypeMismatch", "CardTypeMismatch", None],
}
"""By file: why each of its pods waits in a cluster without such devices, or None if it runs."""
REFUSED = {
    "hami-guide/6.5-mode-mps": "metadata.annotations[nvidia.com/vgpu-mode]: Unsupported "
    'value: "mps"',
    "hami-configuration/6.5-disable-control": "env[CUDA_DISABLE_CONTROL]: Forbidden",
}

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    nodes = [a100_server("server"), gpu_node("mig", [A100_CUT] * 2), gpu_node("t4", [T4])]
    with whole_cluster(nodes) as cluster:
        if os.environ.get("VGPU_TEST_CLUSTER") == "real":  # the stand-in knows no such kind
            runtime = {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "nvidia"},
                "handler": "nvidia",
            }
            done = Kubectl.find(cluster.kubeconfig).run(
                "apply", "-f", "-", stdin=json.dumps(runtime)
            )
            assert done.returncode == 0, done.stderr
        yield cluster


def pods(file: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((EXAMPLES / f"{file}.yaml").read_text())
    return [dict(pod) for document in documents for pod in pods_of(document, ["server"])]


def test_every_pod_that_the_cluster_can_serve_runs(cluster: LocalCluster) -> None:
    """The files are created one by one, because only the pods of one document must fit together."""
    for file in RUN:
        names = [cluster.apply_object(pod)["metadata"]["name"] for pod in pods(file)]
        for name in names:
            running(cluster, name)
        for name in names:
            delete_pod(cluster, name)


@pytest.mark.parametrize("file", WAIT)
def test_a_pod_for_devices_that_are_not_there_waits_and_says_why(
    cluster: LocalCluster, file: str
) -> None:
    made = [cluster.apply_object(pod) for pod in pods(file)]
    for pod, why in zip(made, WAIT[file], strict=True):
        if why is None:
            running(cluster, pod["metadata"]["name"])
            continue
        cluster.wait_for(
            VGPU_CLAIMS,
            claim_name(pod),
            lambda claim, why=why: any(
                why in condition["message"]
                for condition in (claim.get("status") or {}).get("conditions", [])
            ),
        )


@pytest.mark.parametrize("file", REFUSED)
def test_a_document_that_cannot_be_served_is_refused_when_it_is_applied(
    cluster: LocalCluster, file: str
) -> None:
    kubectl = Kubectl.find(cluster.kubeconfig)
    done = kubectl.run("apply", "-f", str(EXAMPLES / f"{file}.yaml"))
    assert done.returncode != 0, done.stdout
    assert REFUSED[file] in done.stderr


def test_the_numa_example_of_alibaba_is_warned_that_nothing_here_pins_cpus(
    cluster: LocalCluster,
) -> None:
    kubectl = Kubectl.find(cluster.kubeconfig)
    file = str(EXAMPLES / "ack/3.2-numa.yaml")
    done = kubectl.run("apply", "--dry-run=server", "-f", file)
    assert done.returncode == 0, done.stderr
    assert "Warning: metadata.annotations[cpuset-scheduler]: has no effect" in done.stderr


@pytest.mark.parametrize("kind", ["Node", "ConfigMap"])
def test_nodes_and_configurations_are_objects_that_the_api_server_takes(
    cluster: LocalCluster, kind: str
) -> None:
    kubectl = Kubectl.find(cluster.kubeconfig)
    found = 0
    for path in sorted(EXAMPLES.glob("*/*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == kind:
                text = json.dumps(document)
                done = kubectl.run("apply", "--dry-run=server", "-f", "-", stdin=text)
                assert done.returncode == 0, f"{path}: {done.stderr}"
                found += 1
    assert found >= 2
