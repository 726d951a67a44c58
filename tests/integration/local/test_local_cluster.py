from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vgpu_api.resources import PODS
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node

SLOTS = "nvidia.com/gpu"


def processes_of(folder: str) -> set[int]:
    """Find the processes that were started for a run folder, which their environment names."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
        except OSError:
            continue  # the process has ended since, or belongs to another user
        if folder.encode() in text:
            found.add(int(path.name))
    return found


def a_pod(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "none",
        "command": ["sh", "-c", "sleep 1000 & wait"],
        "resources": {"limits": {SLOTS: "1", "nvidia.com/gpumem": "4000"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }


def is_running(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Running")


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster([t4_node("n1")]) as cluster:
        yield cluster


def test_nothing_of_a_cluster_is_left_when_it_has_stopped():
    with LocalCluster([t4_node("n1")]) as cluster:
        cluster.apply_object(a_pod("p"))
        cluster.wait_for(PODS, "p", is_running)
        folder = cluster.folder
        # operator, agent, and the container's shell with its child
        assert len(processes_of(str(folder))) >= 4
    assert not processes_of(str(folder))
    assert not folder.exists()


def test_nothing_is_left_when_the_process_around_it_is_told_to_end(tmp_path: Path):
    script = """
        import sys, time
        from vgpu_local.cluster import LocalCluster
        from vgpu_local.nodes import t4_node
        with LocalCluster([t4_node("n1")]) as cluster:
            print(cluster.folder, flush=True)
            time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    with process.stdout:
        folder = process.stdout.readline().strip()
        assert len(processes_of(folder)) >= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not processes_of(folder)
    assert not list(tmp_path.iterdir())


def test_after_a_kubelet_restart_the_agent_registers_again_and_containers_go_on(
    cluster: LocalCluster,
):
    cluster.apply_object(a_pod("p"))
    cluster.wait_for(PODS, "p", is_running)
    for name in ("q", "r", "s"):  # the new socket may well get the inode number of the old one
        cluster.restart_kubelet("n1")
        cluster.apply_object(a_pod(name))
        cluster.wait_for(PODS, name, is_running)
    assert cluster.exec("p", ["true"]).exit_code == 0
