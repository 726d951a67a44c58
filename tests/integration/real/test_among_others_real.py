"""A real kube-scheduler and 100 nodes: DaemonSets run everywhere, and stuck pods delay no others.

`test_among_others.py` checks the exact times in virtual time. Here the API server's own delays
count, and the same pods without devices show how fast the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from perf.cluster_bench.paper import (
    UNTAINTED,
    kinds_are_served,
    make_devices,
    make_nodes,
    node_name,
)
from vgpu_api.names import SCHEDULER_NAME
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_local.background import BackgroundLoop
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installation import apply
from vgpu_local.installed import InstalledCluster
from vgpu_local.programs import ROOT
from vgpu_local.steps import a_container, a_pod

pytestmark = pytest.mark.timeout(300)

NODES = 100
COUNT = "nvidia.com/gpu"
Pod = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[InstalledCluster]:
    """A cluster with pods that cannot run, which request 1.5 times as many devices as there are."""
    with contextlib.ExitStack() as undo:
        plane = ControlPlane(Options(apiserver_args=UNTAINTED))
        undo.callback(plane.stop)
        plane.start()
        loop = BackgroundLoop("among-others")
        undo.callback(loop.stop)
        api = loop.enter(Api.connect(str(plane.kubeconfig)), undo)
        uids = loop.run(make_nodes(api, NODES))
        apply(plane, ROOT / "crds")
        loop.run(kinds_are_served(api))
        loop.run(make_devices(api, plane.etcd_socket, uids))
        started = undo.enter_context(InstalledCluster([], plane=plane))
        for make in CANNOT_RUN.values():
            for number in range(30):
                create(started, make(number))
        yield started


def asking(name: str, devices: int, **spec: Any) -> Pod:
    return a_pod(name, a_container(limits={COUNT: devices}), **spec)


def of_daemonset(name: str, node: str, devices: int) -> Pod:
    """Return a pod as the DaemonSet controller writes it, always with our scheduler."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    if not devices:
        return a_pod(name, a_container(), affinity=affinity, schedulerName=SCHEDULER_NAME)
    return asking(name, devices, affinity=affinity)


def create(cluster: InstalledCluster, pod: Pod) -> None:
    cluster.run(cluster.api.create(PODS, pod))


def bound(cluster: InstalledCluster, prefix: str) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in cluster.objects(PODS)
        if pod["metadata"]["name"].startswith(prefix) and pod["spec"].get("nodeName")
    }


def seconds_of_daemonset(cluster: InstalledCluster, prefix: str, nodes: int, devices: int) -> float:
    """Return the seconds from the first creation to the last binding, by the API server's clock."""
    wanted = {f"{prefix}{number}": node_name(number) for number in range(nodes)}

    async def create_all() -> None:
        pods = [of_daemonset(name, node, devices) for name, node in wanted.items()]
        await asyncio.gather(*(cluster.api.create(PODS, pod) for pod in pods))

    cluster.run(create_all())
    cluster.until(
        lambda: bound(cluster, prefix) == wanted,
        lambda: wanted.keys() - bound(cluster, prefix).keys(),
        limit=200.0,
    )
    pods = [pod for pod in cluster.objects(PODS) if pod["metadata"]["name"] in wanted]
    created = [datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in pods]
    scheduled = [
        datetime.fromisoformat(condition["lastTransitionTime"])
        for pod in pods
        for condition in pod["status"]["conditions"]
        if (condition["type"], condition["status"]) == ("PodScheduled", "True")
    ]
    assert len(scheduled) == nodes
    return (max(scheduled) - min(created)).total_seconds()


def unbound_volume(number: int) -> Pod:
    pod = asking(f"volume-{number}", 8)
    claim = {"claimName": "nobody-provisions-it"}
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
    return pod


def too_much_cpu(number: int) -> Pod:
    pod = asking(f"cpu-{number}", 8)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1000"}
    return pod


def misspelt(number: int) -> Pod:
    limits = {COUNT: 8, "nvidia.com/gpumemory": 1}
    return a_pod(f"misspelt-{number}", a_container(limits=limits))


CANNOT_RUN: dict[str, Callable[[int], Pod]] = {
    "volume": unbound_volume,
    "cpu": too_much_cpu,
    "misspelt": misspelt,
    "foreign": lambda number: asking(f"foreign-{number}", 8, schedulerName="nobody"),
    "elsewhere": lambda number: of_daemonset(f"elsewhere-{number}", "no-such-node", 8),
}


@pytest.mark.parametrize(("nodes", "devices"), [(6, 1), (100, 2)])
def test_a_daemonset_runs_on_each_of_its_nodes_within_ten_seconds(
    cluster: InstalledCluster, nodes: int, devices: int
) -> None:
    """This holds if kube-scheduler binds the same pods without devices within a second."""
    plain_s = seconds_of_daemonset(cluster, f"plain-of-{nodes}-", nodes, 0)
    took_s = seconds_of_daemonset(cluster, f"daemon-of-{nodes}-", nodes, devices)
    print(f"{nodes} nodes: {took_s:g} s, without devices {plain_s:g} s")
    assert took_s <= 10.0 * max(1.0, plain_s)


def test_pods_that_cannot_run_hold_nothing_and_delay_nobody(cluster: InstalledCluster) -> None:
    for number in range(20):
        create(cluster, asking(f"runs-{number}", 4))
    cluster.until(lambda: len(bound(cluster, "runs-")) == 20, lambda: bound(cluster, "runs-"))
    assert [name for kind in CANNOT_RUN for name in bound(cluster, f"{kind}-")] == []
    allocated = [
        claim["metadata"]["name"]
        for claim in cluster.objects(VGPU_CLAIMS)
        if claim.get("status", {}).get("allocation")
    ]
    with_devices = (*bound(cluster, "daemon-of-"), *bound(cluster, "runs-"))
    assert len(allocated) == len(with_devices)
