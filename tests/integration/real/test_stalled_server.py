"""An API server that stops answering for a while ends none of our processes.

etcd elects a leader, a disk hangs, or a machine swaps: for seconds no request is answered.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from vgpu_api.resources import PODS
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_container, a_pod

pytestmark = pytest.mark.timeout(300)

LEASE_S = 10
"""The default. After a stall that is longer, kube-scheduler ends, which has a lease of its own;
`local/test_leadership.py` shows that an operator follows then.
"""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(Options(controllers=True)) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[InstalledCluster]:
    with InstalledCluster([t4_node("one", 2)], lease_s=LEASE_S, plane=plane) as running:
        yield running


@pytest.mark.parametrize("stall_s", [4.0, 8.0])
def test_every_process_survives_a_stall_and_the_next_pod_runs(
    cluster: InstalledCluster, plane: ControlPlane, stall_s: float
) -> None:
    pids = cluster.pids()
    server = plane.pids()["kube-apiserver"]
    os.kill(server, signal.SIGSTOP)
    try:
        over_at = time.monotonic() + stall_s
        cluster.until(lambda: time.monotonic() > over_at, lambda: "stalled", limit=60)
    finally:
        os.kill(server, signal.SIGCONT)
    cluster.await_leader(limit=60)
    name = f"after-{stall_s:.0f}"
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    cluster.run(cluster.api.create(PODS, a_pod(name, a_container(limits=limits))))
    cluster.wait_for(PODS, name, lambda pod: pod["status"].get("phase") == "Running", limit=90)
    cluster.check()
    assert cluster.pids() == pids
