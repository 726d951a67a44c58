"""Every pod of HAMi's and Alibaba's public guides either runs on a whole cluster or shows why not.

`tests/unit/dialects/test_seed_documents.py` lists what each asks for. Workloads are applied as the
pods that their controllers would create, because the stand-in has no controllers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest
import yaml

from example_documents import EXAMPLES, REFUSED, RUN, RUNTIME_CLASS, WAIT, pods, says
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubectl import Kubectl
from vgpu_local.nodes import A100_CUT, T4, a100_server, gpu_node
from vgpu_local.steps import claim_name, delete_pod, running

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    nodes = [a100_server("server"), gpu_node("mig", [A100_CUT] * 2), gpu_node("t4", [T4])]
    with whole_cluster(nodes) as cluster:
        if os.environ.get("VGPU_TEST_CLUSTER") == "real":  # the stand-in knows no such kind
            done = Kubectl.find(cluster.kubeconfig).run(
                "apply", "-f", "-", stdin=json.dumps(RUNTIME_CLASS)
            )
            assert done.returncode == 0, done.stderr
        yield cluster


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
        cluster.wait_for(VGPU_CLAIMS, claim_name(pod), says(why))


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
