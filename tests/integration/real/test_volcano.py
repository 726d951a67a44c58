"""Volcano's own scheduler starts a gang of our pods together or not at all.

The tests are collected only if VOLCANO names a folder with its programs and CRDs
(tests/cluster/volcano.sh), because no Go module of it has the verbs that we need.
"""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.resources import CUSTOM_RESOURCE_DEFINITIONS, PODS, VGPU_CLAIMS, Resource
from vgpu_client.transport import Object
from vgpu_local.cluster import LocalCluster
from vgpu_local.daemon import Daemon
from vgpu_local.nodes import t4_node
from vgpu_local.ports import free_ports
from vgpu_local.programs import ROOT
from vgpu_local.real_cluster import real_cluster
from vgpu_local.steps import a_claim, a_container, a_pod, create, delete_pod, running

VOLCANO = Path(os.environ["VOLCANO"])
GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", True)
JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job", True)
EXAMPLE = ROOT / "examples" / "volcano-gang.yaml"
HALF_A_T4 = {"name": "main", "memory": "8Gi"}
"""For use in a template: Volcano counts all resources of a pod, and no node has
`nvidia.com/gpumem`.
"""
SESSIONS_S = 8.0
"""Time for some of Volcano's sessions, one a second."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with room for four pods of half a GPU each, and Volcano's scheduler beside ours."""
    folder = tmp_path_factory.mktemp("volcano")
    with real_cluster([t4_node("t4", 2)]) as cluster:
        for path in sorted((VOLCANO / "crds").glob("*.yaml")):
            crd = yaml.safe_load(path.read_text())
            cluster.run(cluster.api.create(CUSTOM_RESOURCE_DEFINITIONS, crd))
        with without_tls(cluster) as url:
            volcano = [scheduler(cluster, folder, url), controllers(cluster, folder)]
            for program in volcano:
                program.start()
            create(cluster, a_claim("half", HALF_A_T4))
            try:
                yield cluster
            finally:
                for program in volcano:
                    program.kill()
                    print(program.log.read_text()[-10_000:])


class without_tls:  # noqa: N801 - reads as a statement
    """A proxy to our extender, which requires a certificate; Volcano's plugin presents none."""

    def __init__(self, cluster: LocalCluster) -> None:
        class Forward(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                url = cluster.extender_url(cluster.leader()) + self.path
                asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(asked, timeout=10, context=cluster.tls()) as answer:
                    found = answer.read()
                self.send_response(200)
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, *_: Any) -> None:
                """Log nothing, because the scheduler's log has what matters."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}/volcano"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def scheduler(cluster: LocalCluster, folder: Path, url: str) -> Daemon:
    arguments = {
        "extender.urlPrefix": url,
        "extender.httpTimeout": "5s",
        "extender.predicateVerb": "predicate",
        "extender.allocateFuncVerb": "allocate",
        "extender.deallocateFuncVerb": "deallocate",
        "extender.managedResources": ["nvidia.com/gpu"],
    }
    plugins = [
        [{"name": "priority"}, {"name": "gang"}],
        [
            {"name": "predicates"},
            {"name": "nodeorder"},
            {"name": "extender", "arguments": arguments},
        ],
    ]
    conf = {"actions": "enqueue, allocate", "tiers": [{"plugins": tier} for tier in plugins]}
    written = folder / "conf" / "volcano.yaml"  # the scheduler watches the file's folder
    written.parent.mkdir()
    written.write_text(yaml.safe_dump(conf))
    command = [
        str(VOLCANO / "bin" / "scheduler"),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--scheduler-conf={written}",
        f"--listen-address=127.0.0.1:{free_ports(1)[0]}",
        "--leader-elect=false",
        "--cache-dumper=false",
        "--v=3",
    ]
    return Daemon("vc-scheduler", command, {**os.environ}, folder / "volcano.log")


def controllers(cluster: LocalCluster, folder: Path) -> Daemon:
    command = [
        str(VOLCANO / "bin" / "controller-manager"),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--listen-address=127.0.0.1:{free_ports(1)[0]}",
        "--leader-elect=false",
        "--controllers=job-controller,queue-controller",
        "--v=2",
    ]
    return Daemon("vc-controllers", command, {**os.environ}, folder / "controllers.log")


def group(cluster: LocalCluster, name: str, least: int) -> None:
    """Create a gang; this many of its pods must start together."""
    wire = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": least, "queue": "default"},
    }
    cluster.run(cluster.api.create(GROUPS, wire))


def members(cluster: LocalCluster, name: str, size: int) -> list[str]:
    """Return the pods of the group."""
    names = [f"{name}-{number}" for number in range(size)]
    for pod in names:
        annotations = {"scheduling.k8s.io/group-name": name, "vgpu.dev/claim-template": "half"}
        wire = a_pod(pod, a_container(), annotations=annotations, schedulerName="volcano")
        create(cluster, wire)
    return names


def pods(cluster: LocalCluster, *names: str) -> list[Object]:
    found = cluster.run(cluster.api.list(PODS, namespace="default")).items
    return [pod for pod in found if pod["metadata"]["name"] in names]


def holders(cluster: LocalCluster) -> set[str]:
    """Return the pods that have devices."""
    claims = cluster.run(cluster.api.list(VGPU_CLAIMS, namespace="default")).items
    statuses = [claim.get("status") or {} for claim in claims]
    return {status["reservedFor"]["podName"] for status in statuses if status.get("allocation")}


def until(holds: Callable[[], bool], limit: float) -> bool:
    end = time.monotonic() + limit
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def test_a_gang_is_placed_by_volcano_all_or_nothing(cluster: LocalCluster) -> None:
    group(cluster, "first", 3)
    first = members(cluster, "first", 3)
    for name in first:
        pod = running(cluster, name, limit=60)
        assert pod["spec"]["schedulerName"] == "volcano"
    group(cluster, "second", 3)
    second = members(cluster, "second", 3)
    time.sleep(SESSIONS_S)
    assert [pod["spec"].get("nodeName") for pod in pods(cluster, *second)] == [None] * 3
    for name in first:
        delete_pod(cluster, name)
    for name in second:
        running(cluster, name, limit=60)
    assert until(lambda: holders(cluster) == set(second), 30), holders(cluster)
    for name in second:
        delete_pod(cluster, name)


def test_a_volcano_job_runs_by_a_claim_template(cluster: LocalCluster) -> None:
    """The shipped example, with a template of this cluster."""
    _, job = yaml.safe_load_all(EXAMPLE.read_text())
    job["metadata"]["namespace"] = "default"
    (task,) = job["spec"]["tasks"]
    task["template"]["metadata"]["annotations"]["vgpu.dev/claim-template"] = "half"
    cluster.run(cluster.api.create(JOBS, job))
    names = [f"template-gang-worker-{number}" for number in range(2)]
    for name in names:
        pod = running(cluster, name, limit=60)
        assert pod["spec"]["schedulerName"] == "volcano"
        assert "scheduling.k8s.io/group-name" in pod["metadata"]["annotations"]
    assert until(lambda: holders(cluster) == set(names), 30), holders(cluster)
