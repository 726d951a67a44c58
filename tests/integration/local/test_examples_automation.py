"""The tour and the automation examples, run as a user runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from vgpu_api.resources import GPU_DEVICES, NAMESPACES, PODS, VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.kubectl import Kubectl
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import ROOT
from vgpu_local.steps import (
    a_claim,
    a_container,
    a_pod,
    claim,
    claim_name,
    create,
    reason,
    running,
    until,
)

pytestmark = pytest.mark.timeout(300)

AUTOMATION = ROOT / "examples" / "automation"
HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([t4_node("one"), t4_node("two")], ClusterOptions(lease_s=4)) as cluster:
        yield cluster


def run(cluster: LocalCluster, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        env={
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "KUBECTL_VGPU": f"{sys.executable} -m vgpu_operator.cli",
            "KUBECACHEDIR": str(cluster.folder / "kubectl-cache"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )


def test_the_tour_goes_from_the_first_slice_to_the_last_and_leaves_nothing(cluster: LocalCluster):
    done = run(cluster, "bash", ROOT / "examples" / "tour.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^Reason: .*CardCordoned", done.stdout, re.MULTILINE)
    for said in ("Node: ", "== Leave"):
        assert said in done.stdout
    devices = cluster.run(cluster.api.list(GPU_DEVICES)).items
    assert [device["spec"].get("cordoned", False) for device in devices] == [False, False]
    names = [n["metadata"] for n in cluster.run(cluster.api.list(NAMESPACES)).items]
    assert [
        n["name"] for n in names if n["name"] == "vgpu-tour" and "deletionTimestamp" not in n
    ] == []


def test_a_workload_starts_when_its_claim_has_devices(cluster: LocalCluster, tmp_path: Path):
    wanted, user = tmp_path / "claim.yaml", tmp_path / "pod.yaml"
    wanted.write_text(yaml.safe_dump(a_claim("held", {"memory": "8Gi"}, bindingMode="Immediate")))
    pod = a_pod("user", a_container(), annotations={"vgpu.dev/claim": "held"})
    user.write_text(yaml.safe_dump(pod))
    done = run(cluster, "bash", AUTOMATION / "start-when-allocated.sh", wanted, user, "60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("claim held has GPU-")
    running(cluster, "user")


def test_a_claim_that_gets_nothing_is_deleted_and_its_words_are_printed(
    cluster: LocalCluster, tmp_path: Path
):
    wanted, user = tmp_path / "claim.yaml", tmp_path / "pod.yaml"
    wanted.write_text(yaml.safe_dump(a_claim("big", {"memory": "90Gi"}, bindingMode="Immediate")))
    user.write_text(yaml.safe_dump(a_pod("never", a_container())))
    done = run(cluster, "bash", AUTOMATION / "start-when-allocated.sh", wanted, user, "3")
    assert done.returncode == 1
    assert "claim big got nothing in 3 s: 2/2 CardInsufficientMemory" in done.stderr
    until(cluster, lambda: not cluster.server.objects("vgpuclaims.vgpu.dev", "default"))
    assert cluster.server.objects("pods", "default") == []


def test_a_command_is_run_while_free_memory_is_of_no_use_to_those_who_wait(cluster: LocalCluster):
    script = AUTOMATION / "when-fragmented.sh"
    what = "of the free memory is on devices that are partly used"

    def prints(*lines: str) -> bool:
        """Return True if the script prints these lines.

        Allocated amounts are written once a second.
        """
        return run(cluster, "bash", script, "50", "echo", "scaled").stdout.splitlines() == [*lines]

    until(cluster, lambda: prints(f"0 claims wait; 0 % {what}"))
    spread = {"hami.io/node-scheduler-policy": "spread"}
    for name in ("left", "right"):
        create(cluster, a_pod(name, a_container(limits=HALF), annotations=spread))
        running(cluster, name)
    create(cluster, a_pod("whole", a_container(limits={"nvidia.com/gpu": 1})))
    pod = cluster.wait_for(PODS, "whole", lambda _: True)
    claim(cluster, claim_name(pod), reason)
    until(cluster, lambda: prints(f"1 claims wait; 100 % {what}", "scaled"))
    assert "scaled" not in run(cluster, "bash", script, "100", "echo", "scaled").stdout


def test_a_handler_labels_the_pod_of_a_claim_that_violates(cluster: LocalCluster, tmp_path: Path):
    create(cluster, a_pod("greedy", a_container(limits=HALF)))
    name = claim_name(running(cluster, "greedy"))
    kubectl = Kubectl.find(cluster.kubeconfig)
    command = [sys.executable, "-m", "kopf", "run", "--all-namespaces", "--quiet"]
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "KUBECACHEDIR": str(cluster.folder / "kubectl-cache"),
    }
    log = tmp_path / "log"
    with log.open("w") as out:
        handler = subprocess.Popen(
            [*command, str(AUTOMATION / "on_violation.py")], env=environment, stdout=out, stderr=out
        )
    try:
        violation = {
            "type": "Violated",
            "status": "True",
            "reason": "MemoryLimitViolated",
            "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        patch = [{"op": "add", "path": "/status/conditions/-", "value": violation}]
        done = kubectl.run(
            "patch", "vgc", name, "--subresource=status", "--type=json", "-p", json.dumps(patch)
        )
        assert done.returncode == 0, done.stderr

        def labelled() -> bool:
            pod = cluster.run(cluster.api.get(PODS, "greedy", namespace="default"))
            labels = pod["metadata"].get("labels") or {}
            return labels.get("example.dev/violates-gpu-limits") == "MemoryLimitViolated"

        until(cluster, labelled)
    finally:
        handler.terminate()
        handler.wait(timeout=30)
    claims = cluster.run(cluster.api.get(VGPU_CLAIMS, name, namespace="default"))
    assert "kopf" not in json.dumps(claims), log.read_text()


@pytest.mark.parametrize("file", ["argo-cd.yaml", "flux.yaml"])
def test_applications_install_a_path_of_this_tree(file: str):
    documents = list(yaml.safe_load_all((AUTOMATION / file).read_text()))
    spec = documents[-1]["spec"]
    path = spec["source"]["path"] if "source" in spec else spec["path"]
    assert (ROOT / path / "kustomization.yaml").exists()
