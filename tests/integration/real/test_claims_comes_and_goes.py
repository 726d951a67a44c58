"""A running cluster changes to Claims mode and back, and is uninstalled in that mode.

The steps are those of `docs/install.md` and `docs/operations/uninstall.md`, on Kubernetes' own
control plane, with the accounts, rights and policies of manifests/.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from vgpu_api.names import AGENT_NAMESPACE, FINALIZER_IN_USE
from vgpu_api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
)
from vgpu_client.errors import NotFound
from vgpu_client.transport import Object
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_container, a_pod
from vgpu_operator.cli.uninstall import BINDINGS, POLICIES

SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000}
TEAM = "team"
INSTALLED = (
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    POLICIES,
    BINDINGS,
    DEVICE_CLASSES,
    RESOURCE_SLICES,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
)

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(Options(controllers=True)) as running:
        yield running


def create(cluster: InstalledCluster, name: str, **spec: Any) -> None:
    pod = a_pod(name, spec.pop("container", a_container(limits=SLICE)), **spec)
    pod["metadata"]["namespace"] = TEAM
    cluster.run(cluster.api.create(PODS, pod))


def delete(cluster: InstalledCluster, name: str) -> None:
    cluster.run(cluster.api.delete(PODS, name, namespace=TEAM, grace_s=1))


def running(cluster: InstalledCluster, name: str) -> Object:
    return cluster.wait_for(
        PODS, name, lambda pod: pod["status"].get("phase") == "Running", namespace=TEAM
    )


def allocation_of(cluster: InstalledCluster, pod: Object) -> Object:
    (found,) = (
        claim["status"]["allocation"]
        for claim in cluster.objects(VGPU_CLAIMS, TEAM)
        if claim.get("status", {}).get("reservedFor", {}).get("podUID") == pod["metadata"]["uid"]
    )
    return dict(found)


def runs_on(cluster: InstalledCluster, before: Object, allocation: Object) -> None:
    """Check that neither a container nor a device of a pod has changed."""
    after = running(cluster, before["metadata"]["name"])
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert allocation_of(cluster, after) == allocation


def in_team(cluster: InstalledCluster) -> list[str]:
    return [
        f"{each['kind']} {each['metadata']['name']} {each['metadata'].get('finalizers', '')}"
        for resource in (PODS, VGPU_CLAIMS, RESOURCE_CLAIMS)
        for each in cluster.objects(resource, TEAM)
    ]


def ends(cluster: InstalledCluster) -> None:
    """Wait until the namespace is gone, which a finalizer that was left would prevent."""
    cluster.run(cluster.api.delete(NAMESPACES, TEAM))

    def is_gone() -> bool:
        names = {each["metadata"]["name"] for each in cluster.objects(NAMESPACES)}
        return TEAM not in names

    cluster.until(is_gone, lambda: in_team(cluster))


def not_bound(cluster: InstalledCluster, name: str) -> bool:
    pod = cluster.run(cluster.api.get(PODS, name, namespace=TEAM))
    return "nodeName" not in pod["spec"]


def take_finalizers_off(cluster: InstalledCluster) -> None:
    """Let ResourceClaims go with their pods, as install.md says for the way back."""
    for claim in cluster.objects(RESOURCE_CLAIMS, TEAM):
        if claim["metadata"].get("finalizers") == [FINALIZER_IN_USE]:
            change = {"metadata": {"finalizers": None}}
            name = claim["metadata"]["name"]
            cluster.run(cluster.api.merge_patch(RESOURCE_CLAIMS, name, change, namespace=TEAM))


def test_pods_run_on_while_the_mode_changes_to_claims_and_back(plane: ControlPlane) -> None:
    with InstalledCluster(
        [t4_node("one")], lease_s=6, plane=plane, prepares_claims=True
    ) as cluster:
        cluster.run(cluster.api.create(NAMESPACES, {"metadata": {"name": TEAM}}))
        create(cluster, "by-slots")
        by_slots = running(cluster, "by-slots")
        first = allocation_of(cluster, by_slots)
        create(cluster, "left-behind")  # it does not fit beside the other

        cluster.change_overlay("claims")
        runs_on(cluster, by_slots, first)
        create(cluster, "by-claim")
        # What runs from before still counts: the GPU has room for one of them.
        held = cluster.wait_for(PODS, "by-claim", lambda _: True, namespace=TEAM)
        assert held["spec"]["resourceClaims"]
        cluster.until(
            lambda: any(
                "Insufficient" in str(each.get("status", {}).get("conditions"))
                for each in cluster.objects(VGPU_CLAIMS, TEAM)
            ),
            lambda: cluster.objects(VGPU_CLAIMS, TEAM),
        )
        delete(cluster, "by-slots")
        by_claim = running(cluster, "by-claim")
        second = allocation_of(cluster, by_claim)
        assert not_bound(cluster, "left-behind"), "what waits does not change over"
        delete(cluster, "left-behind")
        create(cluster, "left-behind-too")

        cluster.change_overlay("default")
        take_finalizers_off(cluster)
        runs_on(cluster, by_claim, second)
        create(cluster, "by-slots-again")
        delete(cluster, "by-claim")
        running(cluster, "by-slots-again")
        assert not_bound(cluster, "left-behind-too"), "what waits does not change over"
        for name in ("by-slots-again", "left-behind-too"):
            delete(cluster, name)
        cluster.until(lambda: not in_team(cluster), lambda: in_team(cluster))
        ends(cluster)


def uninstalled(cluster: InstalledCluster, plane: ControlPlane) -> tuple[list[str], str]:
    """Uninstall; return what the command said and what it says is left."""
    command = [sys.executable, "-m", "vgpu_operator.cli", "uninstall", "--yes", "--delete-pods"]
    command += ["--no-wait-for-capacity", "--kubeconfig", str(plane.kubeconfig)]
    said = []
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as uninstalling:
        assert uninstalling.stdout is not None
        assert uninstalling.stderr is not None
        for line in uninstalling.stdout:
            said.append(line)
            if line.startswith("agents"):
                end_agents(cluster)
        return said, uninstalling.stderr.read()


def end_agents(cluster: InstalledCluster) -> None:
    """End the agents with their DaemonSet: they run as processes here, and their pods are empty."""
    for agent in cluster.agents.values():
        agent.kill()
    for pod in cluster.objects(PODS, AGENT_NAMESPACE):
        name = pod["metadata"]["name"]
        cluster.run(cluster.api.delete(PODS, name, namespace=AGENT_NAMESPACE, grace_s=0))


def left(cluster: InstalledCluster) -> list[str]:
    """Return what is left of the installation, whether it is labelled or not."""
    found = []
    for resource in INSTALLED:
        try:
            objects = cluster.objects(resource)
        except NotFound:
            continue
        found += [
            f"{resource.kind} {each['metadata']['name']}"
            for each in objects
            if "vgpu" in str(each["metadata"]["name"])
            or "vgpu" in str(each["metadata"].get("labels"))
        ]
    return found


def test_an_uninstall_in_mode_claims_leaves_nothing(plane: ControlPlane) -> None:
    nodes = [t4_node("one")]
    with InstalledCluster(
        nodes,
        overlay="claims",
        components=("resource-slices",),
        lease_s=6,
        plane=plane,
        prepares_claims=True,
    ) as cluster:
        cluster.run(cluster.api.create(NAMESPACES, {"metadata": {"name": TEAM}}))
        create(cluster, "by-words")
        exactly = {"deviceClassName": "vgpu.dev", "capacity": {"requests": {"memory": "2Gi"}}}
        claim = {
            "metadata": {"name": "made-by-hand", "namespace": TEAM},
            "spec": {"devices": {"requests": [{"name": "main", "exactly": exactly}]}},
        }
        cluster.run(cluster.api.create(RESOURCE_CLAIMS, claim))
        container = a_container()
        container["resources"] = {"claims": [{"name": "gpu"}]}
        named = {"name": "gpu", "resourceClaimName": "made-by-hand"}
        create(cluster, "by-claim", container=container, resourceClaims=[named])
        for name in ("by-words", "by-claim"):
            running(cluster, name)
        cluster.until(lambda: cluster.objects(RESOURCE_SLICES), lambda: "no ResourceSlice")

        said, not_done = uninstalled(cluster, plane)
        # No Deployment and no DaemonSet runs our programs here.
        assert len(not_done.splitlines()) == 1, (not_done, said)
        assert "hosts were not cleaned" in not_done
        (users,) = cluster.objects(RESOURCE_CLAIMS, TEAM)
        assert users["metadata"]["name"] == "made-by-hand"
        assert "finalizers" not in users["metadata"]
        assert "allocation" not in users.get("status", {})
        assert cluster.objects(PODS, TEAM) == []
        assert left(cluster) == []
        ends(cluster)
