"""Only one of two operators decides at a time, under any fault, and they lose no pod."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.resources import CONFIG_MAPS, EVENTS, PODS
from vgpu_client.errors import ServerError
from vgpu_local.apiserver import Fault, WriteEvent
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.daemon import Daemon
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.programs import NAMESPACE
from vgpu_local.steps import empty

pytestmark = pytest.mark.timeout(180)

LEASE_S = 3
HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
LEASES = "leases.coordination.k8s.io"
CLAIMS = "vgpuclaims.vgpu.dev"


@pytest.fixture(scope="module")
def running_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    options = ClusterOptions(lease_s=LEASE_S, operators=2, linger_s=2)
    nodes = [t4_node(name) for name in ("one", "two", "three")]
    with whole_cluster(nodes, options) as cluster:
        yield cluster
        assert excesses(cluster.server.history()) == []


@pytest.fixture
def cluster(running_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with two new operators, and no pod and no claim in it."""
    for operator in running_cluster.operators:
        operator.stop()
    for operator in running_cluster.operators:
        operator.start()
    running_cluster.wait_ready()
    for operator in running_cluster.operators:
        wait_until(running_cluster, lambda one=operator: "everything seen" in one.said())
    yield running_cluster
    running_cluster.server.faults.clear()
    for operator in running_cluster.operators:
        operator.signal(signal.SIGCONT)
        operator.start()
    empty(running_cluster)


@pytest.fixture
def so_far(cluster: LocalCluster) -> int:
    """Return the number of writes of the Lease until the current leader has renewed it."""
    leader = cluster.leader().name
    wait_until(cluster, lambda: holders(cluster)[-1] == leader)
    return len(history(cluster, LEASES, "vgpu-operator")) - 1


def create(cluster: LocalCluster, *names: str) -> None:
    for name in names:
        container = {
            "name": "main",
            "image": "none",
            "command": ["sleep", "infinity"],
            "resources": {"limits": HALF},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [container]},
        }
        eventually(lambda pod=pod: cluster.run(cluster.api.create(PODS, pod)))


def eventually(act: Callable[[], object]) -> None:
    """Retry like a controller while a webhook that is just stopping refuses for a moment."""
    deadline = time.monotonic() + 30
    while True:
        try:
            act()
            return
        except ServerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def all_run(cluster: LocalCluster, *names: str) -> None:
    def runs(pod: dict[str, Any]) -> bool:
        return bool(pod["status"].get("phase") == "Running")

    for name in names:
        cluster.wait_for(PODS, name, runs, limit=60)


def the_other(cluster: LocalCluster, one: Daemon) -> Daemon:
    return next(daemon for daemon in cluster.operators if daemon is not one)


def holders(cluster: LocalCluster, so_far: int = 0) -> list[str]:
    """Return the holders of the Lease in order; an empty name means no holder.

    The first `so_far` writes do not count.
    """
    found: list[str] = []
    for write in history(cluster, LEASES, "vgpu-operator")[so_far:]:
        holder = write.object["spec"].get("holderIdentity", "").rpartition("_")[0]
        if not found or found[-1] != holder:
            found.append(holder)
    return found


def history(cluster: LocalCluster, resource: str, name: str) -> list[WriteEvent]:
    return [
        write
        for write in cluster.server.history()
        if write.resource == resource and write.object["metadata"]["name"] == name
    ]


def wait_until(cluster: LocalCluster, holds: Callable[[], object], limit: float = 30.0) -> float:
    """Return the seconds until the condition holds."""
    began = time.monotonic()
    while not holds():
        cluster.check()
        if time.monotonic() - began > limit:
            logs = "\n".join(f"{one.name}:\n{one.log.read_text()}" for one in cluster.operators)
            raise AssertionError(f"the condition was not met in time\n{logs}")
        time.sleep(0.02)
    return time.monotonic() - began


def has_decided(cluster: LocalCluster, daemon: Daemon) -> bool:
    return "leading;" in daemon.said()


def follows(cluster: LocalCluster, daemon: Daemon) -> bool:
    """Return True if the replica has led and has gone back to following."""
    return "following" in daemon.said()


def test_a_leader_that_goes_hands_over_and_every_pod_is_placed(
    cluster: LocalCluster, so_far: int
) -> None:
    first = cluster.leader()
    second = the_other(cluster, first)
    create(cluster, "before")
    first.may_end()
    first.signal(signal.SIGTERM)
    began = time.monotonic()
    create(cluster, "during-0", "during-1")
    wait_until(cluster, lambda: has_decided(cluster, second))
    print(f"taken over {time.monotonic() - began:.2f} s after SIGTERM")
    create(cluster, "after")
    all_run(cluster, "before", "during-0", "during-1", "after")
    assert holders(cluster, so_far) == [first.name, "", second.name]
    assert first.wait(30) == 0


def test_a_leader_that_goes_refuses_calls_until_its_successor_has_the_service(
    cluster: LocalCluster,
) -> None:
    """A call to a closed socket would block kube-scheduler until it times out."""
    first = cluster.leader()
    second = the_other(cluster, first)
    url = cluster.extender_url(first)
    first.may_end()
    first.signal(signal.SIGTERM)
    while not has_decided(cluster, second):
        assert answer_of(cluster, url) in (200, 503)
    assert first.wait(30) == 0
    assert answer_of(cluster, url) is None


def test_a_replica_listens_when_it_has_seen_everything_and_could_lead(
    cluster: LocalCluster,
) -> None:
    """Its open port means ready, so a rollout that waits for it ends no leader too early."""
    second = the_other(cluster, cluster.leader())
    second.kill()
    late_s = 3.0
    listing = Fault(
        action="delay", verb="list", resource="pods", user=second.name, seconds=late_s, times=1
    )
    fault = cluster.server.faults.add(listing)
    second.start()
    wait_until(cluster, lambda: cluster.server.faults.count(fault) == 1)
    waited = wait_until(cluster, lambda: answer_of(cluster, cluster.extender_url(second)))
    assert waited > late_s - 0.5
    assert answer_of(cluster, cluster.extender_url(second)) == 503


def answer_of(cluster: LocalCluster, url: str) -> int | None:
    """Return the status of an extender's answer, or None if nothing listens there."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=cluster.tls()) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return None


def test_a_leader_that_crashes_is_followed_once_its_lease_and_its_writes_are_over(
    cluster: LocalCluster, so_far: int
) -> None:
    first = cluster.leader()
    second = the_other(cluster, first)
    create(cluster, "before")
    first.kill()
    create(cluster, "during")
    waited = wait_until(cluster, lambda: has_decided(cluster, second))
    print(f"taken over {waited:.2f} s after SIGKILL, with a lease of {LEASE_S} s")
    all_run(cluster, "before", "during")
    assert holders(cluster, so_far) == [first.name, second.name]


def test_a_leader_that_was_stopped_wakes_to_find_that_it_leads_no_more(
    cluster: LocalCluster,
) -> None:
    """Its decisions are stuck on their way to the API server until the other replica leads."""
    first = cluster.leader()
    second = the_other(cluster, first)
    late_s = 3.5 * LEASE_S
    stuck = cluster.server.faults.add(
        Fault(
            action="delay",
            verb="patch",
            resource=f"{CLAIMS}/status",
            user=first.name,
            seconds=late_s,
            times=None,
        )
    )
    names = [f"pod-{number}" for number in range(4)]
    create(cluster, *names)
    wait_until(cluster, lambda: cluster.server.faults.count(stuck) >= len(names))
    landed_at = time.monotonic() + late_s + 0.5
    first.signal(signal.SIGSTOP)
    wait_until(cluster, lambda: has_decided(cluster, second))
    assert time.monotonic() < landed_at  # otherwise none of the writes was late
    wait_until(cluster, lambda: time.monotonic() > landed_at)
    first.signal(signal.SIGCONT)
    wait_until(cluster, lambda: follows(cluster, first))
    create(cluster, "after")
    all_run(cluster, *names, "after")
    for pod in (pod for pod in cluster.objects("pods", "default") if pod_name(pod) in names):
        claim = f"{pod_name(pod)}-{pod['metadata']['uid'][:8]}"
        assert deciders(cluster, claim) == ["", second.name]


def pod_name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def deciders(cluster: LocalCluster, claim: str) -> list[str]:
    """Return the replicas whose marks a claim carried, in order.

    A write that was decided on a version without the successor's mark removes the mark again.
    """
    found: list[str] = []
    for write in history(cluster, CLAIMS, claim):
        decider = write.object.get("status", {}).get("decider", "").rpartition("_")[0]
        if not found or found[-1] != decider:
            found.append(decider)
    return found


def test_a_leader_cut_off_from_the_lease_alone_follows_before_another_decides(
    cluster: LocalCluster,
) -> None:
    first = cluster.leader()
    second = the_other(cluster, first)
    create(cluster, "before")
    cluster.server.faults.add(Fault(action="refuse", resource=LEASES, user=first.name, times=None))
    create(cluster, "during")
    wait_until(cluster, lambda: follows(cluster, first))
    assert not has_decided(cluster, second)
    assert answer_of(cluster, cluster.extender_url(first)) == 503
    wait_until(cluster, lambda: has_decided(cluster, second))
    create(cluster, "after")
    all_run(cluster, "before", "during", "after")


def test_a_leader_that_lost_the_lease_leads_again_without_another_list(
    cluster: LocalCluster,
) -> None:
    """It kept its caches; it lists again only if the fence finds that its watches lag behind."""
    first = cluster.leader()
    the_other(cluster, first).kill()
    create(cluster, "before")
    watched = Fault(
        action="delay", verb="list", resource=CLAIMS, user=first.name, seconds=0.0, times=None
    )
    lists = cluster.server.faults.add(watched)
    refused = Fault(action="refuse", resource=LEASES, user=first.name, times=None)
    fault = cluster.server.faults.add(refused)
    wait_until(cluster, lambda: follows(cluster, first))
    create(cluster, "during")
    cluster.server.faults.remove(fault)
    wait_until(cluster, lambda: first.said().count("leading;") == 2)
    create(cluster, "after")
    all_run(cluster, "before", "during", "after")
    assert cluster.server.faults.count(lists) == 0
    names = [
        write.object["spec"]["holderIdentity"]
        for write in history(cluster, LEASES, "vgpu-operator")
    ]
    assert names[-1].startswith(first.name)
    assert names[-1].endswith(".2")


def configured(cluster: LocalCluster, name: str) -> None:
    """Create a ConfigMap with a key that has no effect; an invalid one would be refused at once."""
    metadata = {"name": name, "namespace": NAMESPACE}
    data = {"config.yaml": "nvidia: {libCudaLogLevel: 4}"}
    eventually(
        lambda: cluster.run(cluster.api.create(CONFIG_MAPS, {"metadata": metadata, "data": data}))
    )


def reporters(cluster: LocalCluster, name: str) -> list[str]:
    """Return component and reason of each event about a ConfigMap."""
    found = cluster.run(cluster.api.list(EVENTS, namespace=NAMESPACE)).items
    return [
        f"{event['source']['component']} {event['reason']}"
        for event in found
        if event["involvedObject"]["name"] == name
    ]


def test_the_leader_reports_a_configuration_and_after_it_its_successor(
    cluster: LocalCluster,
) -> None:
    first = cluster.leader()
    configured(cluster, "vgpu-config-one")
    wait_until(cluster, lambda: reporters(cluster, "vgpu-config-one"))
    second = the_other(cluster, first)
    assert reporters(cluster, "vgpu-config-one") == ["vgpu-operator ConfigMapWarning"]
    first.may_end()
    first.signal(signal.SIGKILL)
    wait_until(cluster, lambda: has_decided(cluster, second))
    configured(cluster, "vgpu-config-two")
    wait_until(cluster, lambda: reporters(cluster, "vgpu-config-two"))
    assert reporters(cluster, "vgpu-config-two") == ["vgpu-operator ConfigMapWarning"]
    for name in ("vgpu-config-one", "vgpu-config-two"):
        cluster.run(cluster.api.delete(CONFIG_MAPS, name, namespace=NAMESPACE))
    for one in (first, second):
        assert "OS signals are ignored" not in one.said()
