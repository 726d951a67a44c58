"""The examples of the guides and the seeds in Claims mode: the files of Extender mode, unchanged.

kube-scheduler is stock and not configured. What Extender mode shows of the same files is tested in
`integration/local/test_public_documents.py` and `integration/local/test_seed_examples.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from example_documents import EXAMPLES, REFUSED, RUN, RUNTIME_CLASS, WAIT, pods, says
from vgpu_api.resources import PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_client.errors import ApiError
from vgpu_client.transport import Object
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_local.installed import InstalledCluster
from vgpu_local.kubectl import Kubectl
from vgpu_local.nodes import A100_CUT, T4, a100_server, gpu_node
from vgpu_local.steps import claim_name

SEEDS = (
    *("01-two-pods-one-card", "02-memory-only", "03-exclusive", "04-percentage"),
    *("05-policies", "05-policies-four-pods", "08-numa"),
)
OF_ANOTHER_SCHEDULER = ("dialects/volcano-scheduler",)
"""Its pods name Volcano's scheduler, which is not there; they keep it in every mode."""

pytestmark = pytest.mark.timeout(380)


@pytest.fixture(scope="module")
def cluster(kubernetes_version: MinorVersion) -> Iterator[InstalledCluster]:
    nodes = [a100_server("server"), gpu_node("mig", [A100_CUT] * 2), gpu_node("t4", [T4])]
    options = Options(controllers=True, version=kubernetes_version)
    with (
        ControlPlane(options) as plane,
        InstalledCluster(nodes, operators=1, webhooks=1, overlay="claims", plane=plane) as running,
    ):
        done = Kubectl.find(plane.kubeconfig).run(
            "apply", "-f", "-", stdin=json.dumps(RUNTIME_CLASS)
        )
        assert done.returncode == 0, done.stderr
        yield running


def create(cluster: InstalledCluster, pod: Object) -> Object:
    metadata = {"namespace": "default", **pod["metadata"]}
    return cluster.run(cluster.api.create(PODS, {**pod, "metadata": metadata}))


def delete(cluster: InstalledCluster, names: list[str]) -> None:
    """Delete pods, and wait until no claim is left."""
    for name in names:
        cluster.run(cluster.api.delete(PODS, name, namespace="default", grace_s=0))

    def left() -> list[Object]:
        found = [*cluster.objects(PODS), *cluster.objects(RESOURCE_CLAIMS)]
        return [*found, *cluster.objects(VGPU_CLAIMS)]

    cluster.until(lambda: not left(), left)


def served(cluster: InstalledCluster, name: str) -> None:
    """Wait until a pod is bound to the node of its devices, through a ResourceClaim of its own."""
    pod = cluster.wait_for(PODS, name, lambda pod: pod["spec"].get("nodeName"))
    claim = cluster.wait_for(
        VGPU_CLAIMS, claim_name(pod), lambda claim: claim.get("status", {}).get("allocation")
    )
    (entry,) = pod["spec"]["resourceClaims"]
    shown = cluster.wait_for(RESOURCE_CLAIMS, entry["resourceClaimName"], lambda _: True)
    assert claim["status"]["allocation"]["nodeName"] == pod["spec"]["nodeName"]
    (consumer,) = shown["status"]["reservedFor"]
    assert consumer["uid"] == pod["metadata"]["uid"]


def run(cluster: InstalledCluster, made: list[dict[str, Any]]) -> None:
    names = [create(cluster, pod)["metadata"]["name"] for pod in made]
    for name in names:
        served(cluster, name)
    delete(cluster, names)


def test_every_pod_of_the_guides_that_runs_in_mode_extender_runs_here(
    cluster: InstalledCluster,
) -> None:
    for file in RUN:
        if file not in OF_ANOTHER_SCHEDULER:
            run(cluster, pods(file))


def test_every_example_of_the_seeds_runs_here(cluster: InstalledCluster) -> None:
    for file in SEEDS:
        run(cluster, list(yaml.safe_load_all((EXAMPLES / f"seeds/{file}.yaml").read_text())))


def test_what_waits_in_mode_extender_waits_here_for_the_same_reason(
    cluster: InstalledCluster,
) -> None:
    for file, reasons in WAIT.items():
        made = [create(cluster, pod) for pod in pods(file)]
        for pod, why in zip(made, reasons, strict=True):
            if why is None:
                served(cluster, pod["metadata"]["name"])
                continue
            cluster.wait_for(VGPU_CLAIMS, claim_name(pod), says(why))
        delete(cluster, [pod["metadata"]["name"] for pod in made])


def refused(cluster: InstalledCluster, pod: Object) -> str:
    with pytest.raises(ApiError) as error:
        create(cluster, pod)
    return str(error.value)


@pytest.mark.parametrize("file", REFUSED)
def test_what_is_refused_in_mode_extender_is_refused_here(
    cluster: InstalledCluster, file: str
) -> None:
    made = pods(file)
    assert made
    for pod in made:
        assert REFUSED[file] in refused(cluster, pod)


def test_devices_of_other_vendors_are_refused_with_the_modes_that_serve_them(
    cluster: InstalledCluster,
) -> None:
    made = pods("hami-configuration/6.1-other-vendors")
    assert len(made) == 3
    for pod in made:
        assert "the modes Extender and Gate serve all" in refused(cluster, pod)
