"""Steps of tests on a whole cluster: create, wait for and inspect pods and claims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import yaml

from vgpu_api.names import pod_claim_name
from vgpu_api.quantity import MIB
from vgpu_api.resources import EVENTS, PODS, VGPU_CLAIMS
from vgpu_client.errors import NotFound
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubectl import Kubectl
from vgpu_local.programs import PROBE, ROOT

_RIGHTS = ROOT / "manifests" / "base" / "operator" / "rights.yaml"


def a_container(
    name: str = "main",
    limits: Mapping[str, int] | None = None,
    *,
    command: Sequence[str] = ("sleep", "infinity"),
    **fields: Any,
) -> Object:
    """Return a container as users write it."""
    resources = {"limits": dict(limits)} if limits else {}
    return {
        "name": name,
        "image": "none",
        "command": list(command),
        "resources": resources,
        **fields,
    }


def a_pod(
    name: str,
    *containers: Object,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """Return a pod that ends quickly on SIGTERM."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec},
    }


def a_claim(name: str, *requests: Object, **spec: Any) -> Object:
    """Return a claim as users write it."""
    return {
        "apiVersion": "vgpu.dev/v1alpha1",
        "kind": "VGPUClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"requests": list(requests), **spec},
    }


def create(cluster: LocalCluster, obj: Object) -> Object:
    """Create an object, which must not exist yet."""
    resource = PODS if obj["kind"] == "Pod" else VGPU_CLAIMS
    return cluster.run(cluster.api.create(resource, obj))


def delete_pod(cluster: LocalCluster, name: str, *, grace_s: int = 1) -> None:
    """Delete a pod; a grace period of 0 seconds deletes it by force."""
    cluster.run(cluster.api.delete(PODS, name, namespace="default", grace_s=grace_s))


def delete_claim(cluster: LocalCluster, name: str) -> None:
    """Delete a claim."""
    cluster.run(cluster.api.delete(VGPU_CLAIMS, name, namespace="default"))


def running(
    cluster: LocalCluster, name: str, *, namespace: str = "default", limit: float = 30.0
) -> Object:
    """Wait until the pod runs, and return it."""
    return cluster.wait_for(
        *(PODS, name, lambda pod: pod["status"].get("phase") == "Running"),
        namespace=namespace,
        limit=limit,
    )


def record(annotation: str) -> list[tuple[str, int, int]]:
    """Return UUID, MiB and cores of each device in a record of HAMi, parsed as HAMi would."""
    entries = annotation.replace(";", "").split(":")
    fields = [entry.split(",") for entry in entries if entry]
    return [(uuid, int(mib), int(cores)) for uuid, _, mib, cores in fields]


def claim_name(pod: Object) -> str:
    """Return the name of the claim that is made for a pod."""
    return pod_claim_name(pod["metadata"]["name"], pod["metadata"]["uid"])


def claim(cluster: LocalCluster, name: str, holds: Callable[[Object], object]) -> Object:
    """Wait until `holds` is true for a claim's status, and return the claim."""
    return cluster.wait_for(VGPU_CLAIMS, name, lambda found: holds(found.get("status") or {}))


def is_allocated(status: Object) -> bool:
    """Return True if the claim has devices."""
    return bool(status.get("allocation"))


def is_prepared(status: Object) -> bool:
    """Return True if the agent reports that limits are applied; for a pod's claim it may not."""
    return any(
        condition["type"] == "Prepared" and condition["status"] == "True"
        for condition in status.get("conditions", [])
    )


def reason(status: Object) -> str:
    """Return the reason why a claim has no devices; empty if it has some or none was reported."""
    for condition in status.get("conditions", []):
        if condition["type"] == "Allocated" and condition["status"] == "False":
            return str(condition["reason"])
    return ""


def memory_seen(cluster: LocalCluster, pod: str, *, container: str | None = None) -> list[int]:
    """Return the MiB of each device as a program in the container sees it."""
    done = cluster.exec(pod, [str(PROBE), "info"], container=container)
    assert done.exit_code == 0, done.stderr
    devices = json.loads(done.stdout.splitlines()[-1])["devices"]
    return [device["cuda_total"] // MIB for device in devices]


def empty(cluster: LocalCluster, *, limit: float = 30.0) -> None:
    """Delete every pod and claim, and wait until all are gone, so that no finalizer is stuck."""
    for plural, resource in (("pods", PODS), ("vgpuclaims.vgpu.dev", VGPU_CLAIMS)):
        for found in cluster.server.objects(plural, "default"):
            name = found["metadata"]["name"]
            if resource is PODS or not found["metadata"].get("ownerReferences"):
                with suppress(NotFound):  # it has ended since it was listed
                    cluster.run(cluster.api.delete(resource, name, namespace="default", grace_s=1))
    for plural in ("pods", "vgpuclaims.vgpu.dev"):
        until(cluster, partial(_is_empty, cluster, plural), limit)


def forget_events(cluster: LocalCluster) -> None:
    """Delete all events."""
    for found in cluster.run(cluster.api.list(EVENTS, namespace="default")).items:
        with suppress(NotFound):
            name = found["metadata"]["name"]
            cluster.run(cluster.api.delete(EVENTS, name, namespace="default"))


def _is_empty(cluster: LocalCluster, plural: str) -> bool:
    return not cluster.server.objects(plural, "default")


def until(cluster: LocalCluster, holds: Callable[[], object], limit: float = 30.0) -> None:
    """Wait until `holds` is true, for conditions that no single object shows."""
    deadline = time.monotonic() + limit
    while not holds():
        cluster.check()
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.05)


def grant_the_operators_account(cluster: LocalCluster) -> None:
    """Grant what the operator's role lets it write; in these tests it runs as another user.

    The stand-in checks no permissions and has no roles.
    """
    if os.environ.get("VGPU_TEST_CLUSTER") != "real":
        return
    rights = [r for r in yaml.safe_load_all(_RIGHTS.read_text()) if r["kind"].startswith("Cluster")]
    done = Kubectl.find(cluster.kubeconfig).run(
        *("apply", "-f", "-"), stdin=yaml.safe_dump_all(rights)
    )
    assert done.returncode == 0, done.stderr


def kubectl_vgpu(
    cluster: LocalCluster, *arguments: str, limit_s: float = 180
) -> subprocess.CompletedProcess[str]:
    """Run a verb of the CLI as the cluster's administrator."""
    command = [sys.executable, "-m", "vgpu_operator.cli", *arguments]
    return subprocess.run(
        [*command, "--kubeconfig", str(cluster.kubeconfig)],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
    )
