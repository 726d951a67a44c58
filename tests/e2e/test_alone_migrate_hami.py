"""A real node moves from HAMi to us and back while its pods run.

It needs a node of its own without anything of the project: run by `make e2e-migrate`. HAMi's
programs are played (`hami_on_node.py`); kubelet, containerd and control plane are real.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hami_on_node import NODE, TENANTS, HamiOnNode, gpus
from real_node import AGENTS, Json, RealNode, a_pod, a_slice, until

BUILD = Path(__file__).parents[2] / "build" / "e2e"
pytestmark = pytest.mark.timeout(1500)

T4, A100 = 0, 4
"""Numbers of two of the node's GPUs."""
TRAINING = {"train-0": (T4, 9001), "train-1": (A100, 20001), "train-2": (A100, 30001)}
"""HAMi's pods: GPU and MiB of each. The API server would write 9000 as 9k, which HAMi reads."""
T4_REST, A100_REST = 16384 - 9001, 81920 - 20001 - 30001


class Move:
    """The command that moves the node, with the time that each call took.

    Args:
        node: The node.
    """

    def __init__(self, node: RealNode) -> None:
        self._node = node
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "vgpu_operator.cli", "migrate", "hami", *flags)
        began = time.monotonic()
        done = self._node.attempt(*command, limit_s=700)
        self.seconds[name] = round(time.monotonic() - began, 1)
        return done


@pytest.fixture
def hamis() -> Iterator[RealNode]:
    """A node that HAMi serves, with nothing of the project on it; for this test only."""
    BUILD.mkdir(parents=True, exist_ok=True)
    node = RealNode(BUILD / "migrated-node")
    node.remove()
    try:
        node.on()
        HamiOnNode(node).install()
        yield node
    finally:
        node.remove()


def containers(node: RealNode) -> Mapping[str, Json]:
    """Return what tells if the container of each of HAMi's pods is still the same, by pod."""
    found = {}
    for pod in node.get("pods", namespace=TENANTS)["items"]:
        (status,) = pod["status"]["containerStatuses"]
        found[pod["metadata"]["name"]] = {
            "container": status["containerID"],
            "restarts": status["restartCount"],
            "running": "running" in status["state"],
        }
    return found


def claimed(node: RealNode, namespace: str) -> list[tuple[str, str]]:
    """Return the GPU and the memory of each claim in a namespace that has devices."""
    return sorted(
        (device["uuid"], device["memory"])
        for claim in node.get("vgpuclaims", namespace=namespace)["items"]
        for device in claim["status"].get("allocation", {}).get("devices", ())
    )


def ours(name: str, gpu: int, mib: int) -> Json:
    pod = a_pod(name, "default", limits=a_slice(mib))
    pod["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] = gpus()[gpu]["id"]
    return pod


def labels(node: RealNode) -> Json:
    found: Json = node.get("node", NODE)["metadata"]["labels"]
    return found


def test_a_node_moves_from_hami_and_back_while_its_pods_run(hamis: RealNode) -> None:
    hami, move = HamiOnNode(hamis), Move(hamis)
    for name, (gpu, mib) in TRAINING.items():
        hami.run_pod(name, gpu, mib, cores=20)
    hamis.install_beside_hami()
    before = containers(hamis)
    assert hamis.get("pods", namespace=AGENTS)["items"] == []  # no agent before the node moves

    dry = move("dry_run", "--dry-run")

    assert (dry.returncode, dry.stderr) == (0, ""), dry
    assert f"Node {NODE}: 8 GPUs; pods of HAMi's that go on running: 3" in dry.stdout
    assert "Cannot start" not in dry.stdout
    assert (labels(hamis)["gpu"], hami.serves()) == ("on", True)
    assert containers(hamis) == before

    done = move("take_over", f"--node={NODE}", "--yes")

    assert (done.returncode, done.stderr) == (0, ""), done
    assert "gpu" not in labels(hamis)
    assert "unschedulable" not in hamis.get("node", NODE)["spec"]
    assert containers(hamis) == before
    uuids = [gpu["id"] for gpu in gpus()]
    held = sorted((uuids[gpu], f"{mib}Mi") for gpu, mib in TRAINING.values())
    assert claimed(hamis, TENANTS) == held

    hamis.kubectl("label", "namespace", "default", "vgpu.dev/admission=on")

    # A container that starts again has device ids that our agent has never offered.
    # The status of the command itself is lost when the container ends.
    ends = ("exec", "train-1", "--", "sh", "-c", "kill -TERM 1")
    hamis.attempt("kubectl", "-n", TENANTS, *ends)
    until(lambda: containers(hamis)["train-1"]["restarts"] == 1, "its container to start again")
    hamis.ready(TENANTS, "train-1")
    before = containers(hamis)

    # New pods get what is left, and not a MiB more.
    hamis.apply(ours("fits", A100, A100_REST), ours("waits", T4, T4_REST + 1))
    hamis.ready("default", "fits")
    assert hamis.filled("default", "fits") == A100_REST << 20
    hamis.told("default", "waits", "1/8 CardInsufficientMemory")
    assert not hamis.get("pod", "waits")["spec"].get("nodeName")
    hamis.kubectl("-n", TENANTS, "delete", "pod", "train-0", "--timeout=60s", limit_s=70)
    hamis.ready("default", "waits")

    refused = move("refused", f"--node={NODE}", "--undo", "--yes")
    assert refused.returncode == 1
    assert f"pod default/fits uses a GPU of node {NODE}" in refused.stderr
    hamis.clear("default")

    undone = move("give_back", f"--node={NODE}", "--undo", "--yes")

    assert (undone.returncode, undone.stderr) == (0, ""), undone
    assert labels(hamis)["gpu"] == "on"
    assert "unschedulable" not in hamis.get("node", NODE)["spec"]
    assert claimed(hamis, TENANTS) == []
    after = containers(hamis)
    assert after == {name: before[name] for name in ("train-1", "train-2")}
    hami.run_pod("later", T4, 1001, cores=10)
    (BUILD / "migrate.json").write_text(json.dumps(move.seconds, indent=2) + "\n")
