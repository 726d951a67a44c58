"""A node moves from HAMi to us and back while its pods run, on a whole cluster."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from vgpu_api import names
from vgpu_api.resources import NODES, PODS
from vgpu_client.transport import Object
from vgpu_local.checker import excesses
from vgpu_local.cluster import LocalCluster
from vgpu_local.hami import DEVICE_CONFIG, TENANTS, BesideHami
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import (
    a_container,
    a_pod,
    claim_name,
    create,
    delete_pod,
    grant_the_operators_account,
    kubectl_vgpu,
    running,
    until,
)

pytestmark = pytest.mark.timeout(300)

NODE = "n1"
CONFIG = Path(__file__).parents[3] / "manifests" / "overlays" / "beside-hami" / "config.yaml"


def migrate(cluster: LocalCluster, *flags: str) -> subprocess.CompletedProcess[str]:
    return kubectl_vgpu(cluster, "migrate", "hami", *flags, limit_s=200)


@pytest.fixture
def beside(
    whole_cluster: Callable[..., LocalCluster],
) -> Iterator[tuple[LocalCluster, BesideHami]]:
    """A node with one T4 of 16 GiB that HAMi serves, without any of our components."""
    options = ClusterOptions(
        config=yaml.safe_load(CONFIG.read_text()), scheduler_names=frozenset({"vgpu-scheduler"})
    )
    node = t4_node(NODE)
    with whole_cluster([node], options=options) as cluster:
        hami = BesideHami(cluster, node, CONFIG)
        hami.install()
        grant_the_operators_account(cluster)
        thread = threading.Thread(target=hami.run_forever, daemon=True)
        thread.start()
        try:
            yield cluster, hami
        finally:
            hami.stop()
            thread.join(10)


def node(cluster: LocalCluster) -> Object:
    return cluster.run(cluster.api.get(NODES, NODE))


def claims(cluster: LocalCluster, namespace: str) -> dict[str, Object]:
    found = cluster.objects("vgpuclaims.vgpu.dev", namespace)
    return {each["metadata"]["name"]: each for each in found}


def ours(mib: int, name: str) -> Object:
    return a_pod(name, a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}))


def warnings(cluster: LocalCluster) -> list[str]:
    """Return the warnings about HAMi's pods, which neither of our programs may write."""
    events = cluster.objects("events", TENANTS)
    return [str(each.get("message")) for each in events if each.get("type") == "Warning"]


def is_cordoned(found: Object) -> bool:
    return bool(found["spec"].get("unschedulable"))


def test_a_node_with_three_running_pods_is_taken_over_and_given_back(
    beside: tuple[LocalCluster, BesideHami],
) -> None:
    cluster, hami = beside
    pods = [hami.run_pod(f"train-{at}", mib, cores=20) for at, mib in enumerate((2000, 3000, 4000))]

    done = migrate(cluster, "--node", NODE, "--yes")

    assert (done.returncode, done.stderr) == (0, ""), done
    found = node(cluster)
    assert not is_cordoned(found)
    assert found["metadata"]["labels"][names.LABEL_NODE_AGENT] == names.ON
    assert "gpu" not in found["metadata"]["labels"]
    assert names.HAMI_NODE_REGISTER not in found["metadata"]["annotations"]
    assert not hami.knows_the_node
    held = claims(cluster, TENANTS)
    assert sorted(held) == sorted(map(claim_name, pods))
    amounts = [held[claim_name(pod)]["status"]["allocation"]["devices"][0] for pod in pods]
    assert [each["memory"] for each in amounts] == ["2000Mi", "3000Mi", "4000Mi"]
    assert [each["cores"] for each in amounts] == [20, 20, 20]

    # A restarted container gets what HAMi's plugin gave it, under ids that our agent never had.
    hami.restart("train-0")

    # 7384 of 16384 MiB are left: one pod fits, and another waits until one of HAMi's pods ends.
    create(cluster, ours(7000, "fits"))
    running(cluster, "fits")
    create(cluster, ours(4000, "waits"))
    until(cluster, lambda: bool(claims(cluster, "default").get("waits") or _refused(cluster)))
    cluster.run(cluster.api.delete(PODS, "train-2", namespace=TENANTS, grace_s=1))
    running(cluster, "waits")
    until(cluster, lambda: len(claims(cluster, TENANTS)) == 2)
    assert excesses(cluster.server.history()) == []
    assert warnings(cluster) == []

    refused = migrate(cluster, "--node", NODE, "--undo", "--yes")
    assert refused.returncode == 1
    assert "pod default/fits uses a GPU of node n1" in refused.stderr
    assert not is_cordoned(node(cluster))
    for name in ("fits", "waits"):
        delete_pod(cluster, name)
    until(cluster, lambda: not claims(cluster, "default"))

    undone = migrate(cluster, "--node", NODE, "--undo", "--yes")

    assert (undone.returncode, undone.stderr) == (0, ""), undone
    found = node(cluster)
    assert not is_cordoned(found)
    assert found["metadata"]["labels"]["gpu"] == "on"
    assert names.LABEL_NODE_AGENT not in found["metadata"]["labels"]
    assert names.ANNOTATION_FROM_HAMI not in found["metadata"]["annotations"]
    assert hami.knows_the_node
    assert claims(cluster, TENANTS) == {}
    assert cluster.objects("gpudevices.vgpu.dev") == []
    hami.run_pod("after", 1000)
    for name in ("train-0", "train-1"):
        running(cluster, name, namespace=TENANTS)


def test_a_dry_run_names_what_is_in_the_way_and_changes_nothing(
    beside: tuple[LocalCluster, BesideHami],
) -> None:
    cluster, hami = beside
    hami.run_pod("fine", 2000)
    hami.run_pod("odd", 3000, record="GPU-of-another-node,NVIDIA,3000,0:;")
    hami.run_pod("broken", 3000, record="GPU-0,NVIDIA,lots:;")
    before = node(cluster), claims(cluster, TENANTS)

    dry = migrate(cluster, "--dry-run")
    wet = migrate(cluster, "--yes")

    assert (dry.returncode, dry.stderr) == (1, ""), dry
    assert "pod team-hami/fine: GPU GPU-" in dry.stdout
    assert (
        "Cannot start: pod team-hami/odd: uses GPU GPU-of-another-node, which node n1 has not "
        "registered\n" in dry.stdout
    )
    assert (
        "Cannot start: pod team-hami/broken: metadata.annotations[hami.io/vgpu-devices-allocated]: "
        'Invalid value: "GPU-0,NVIDIA,lots:;": must be UUID,vendor,MiB,cores: for each GPU'
        in dry.stdout
    )
    assert "--node-label-selector=gpu=on: an argument of HAMi's" in dry.stdout
    assert wet.returncode == 2
    assert "pod team-hami/odd" in wet.stderr
    assert (node(cluster)["spec"], claims(cluster, TENANTS)) == (before[0]["spec"], before[1])
    assert node(cluster)["metadata"]["labels"] == before[0]["metadata"]["labels"]


def test_an_over_committed_gpu_and_a_broken_configmap_stop_it_before_anything_changes(
    beside: tuple[LocalCluster, BesideHami],
) -> None:
    cluster, hami = beside
    hami.configure(DEVICE_CONFIG.replace("deviceMemoryScaling: 1", "deviceMemoryScaling: 2"))
    for name in ("first", "second"):
        hami.run_pod(name, 9000)
    before = node(cluster)

    over_committed = migrate(cluster, "--node", NODE, "--yes")
    hami.configure("nvidia: [")
    broken = migrate(cluster, "--node", NODE, "--yes")

    assert over_committed.returncode == 2
    assert "HAMi's deviceMemoryScaling of 2 has let its pods ask for" in over_committed.stderr
    assert broken.returncode == 2
    assert "hami-scheduler-device: data[device-config.yaml]: Invalid value" in broken.stderr
    now = node(cluster)
    assert now["spec"] == before["spec"]
    assert now["metadata"]["labels"] == before["metadata"]["labels"]
    assert names.ANNOTATION_FROM_HAMI not in now["metadata"]["annotations"]
    assert claims(cluster, TENANTS) == {}
    assert hami.knows_the_node


def _refused(cluster: LocalCluster) -> bool:
    return any("waits" in name for name in claims(cluster, "default"))
