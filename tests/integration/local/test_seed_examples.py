"""The seed's worked examples 1 to 4: applied as a user would, checked by the seed's own commands.

Examples 5 to 8 choose among devices and nodes: `test_seed_examples_of_choice.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vgpu_api.names import HAMI_DEVICES_ALLOCATED
from vgpu_api.quantity import MIB
from vgpu_api.resources import NODES, PODS, VGPU_CLAIMS
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import a100_node, t4_node, v100_node
from vgpu_local.programs import PROBE, ROOT
from vgpu_local.steps import (
    a_container,
    a_pod,
    create,
    delete_pod,
    empty,
    is_prepared,
    record,
    running,
)
from vgpu_local.typed import typed

EXAMPLES = ROOT / "examples"
RECORD = r"-o jsonpath='{.metadata.annotations.hami\.io/vgpu-devices-allocated}'"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    nodes = [t4_node("t4"), v100_node("v100"), a100_node("a100")]
    with whole_cluster(nodes) as cluster:
        yield cluster


@pytest.fixture
def applied(cluster: LocalCluster) -> Iterator[Any]:
    """Apply examples; at the end, delete their pods and claims."""

    def apply(name: str) -> None:
        cluster.apply(EXAMPLES / name)

    yield apply
    empty(cluster)


def devices(pod: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return UUID, MiB and cores of each device in HAMi's record."""
    return record(pod["metadata"]["annotations"][HAMI_DEVICES_ALLOCATED])


def probe(cluster: LocalCluster, pod: str, command: str) -> Any:
    done = cluster.exec(pod, [str(PROBE), *command.split()])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_example_1_two_pods_share_one_device_with_8192_mib_each(
    cluster: LocalCluster, applied: Callable[[str], None]
) -> None:
    applied("seeds/01-two-pods-one-card.yaml")
    first = devices(running(cluster, "inference-service-a"))
    second = devices(running(cluster, "inference-service-b"))
    assert first == second
    assert first[0][1:] == (8192, 50)
    for pod in ("inference-service-a", "inference-service-b"):
        (seen,) = probe(cluster, pod, "info")["devices"]
        assert (seen["uuid"], seen["cuda_total"]) == (first[0][0], 8192 * MIB)
        assert record(typed(cluster, f"kubectl get pod {pod} {RECORD}")) == first
        assert "0MiB /   8192MiB" in typed(cluster, f"kubectl exec {pod} -- nvidia-smi")
        assert "CUDA_DEVICE_SM_LIMIT=50" in typed(cluster, f"kubectl exec {pod} -- env")


def test_example_1_a_pod_is_refused_at_its_limit_and_the_other_does_not_notice(
    cluster: LocalCluster, applied: Callable[[str], None]
) -> None:
    applied("seeds/01-two-pods-one-card.yaml")
    running(cluster, "inference-service-a")
    running(cluster, "inference-service-b")
    filled = probe(cluster, "inference-service-a", "fill")
    assert (filled["filled"], filled["result"]) == (8192 * MIB, 2)
    held = probe(cluster, "inference-service-b", "fill")
    assert (held["filled"], held["result"]) == (8192 * MIB, 2)


def test_example_2_memory_is_limited_and_compute_is_not(
    cluster: LocalCluster, applied: Callable[[str], None]
) -> None:
    applied("seeds/02-memory-only.yaml")
    ((device, _, cores),) = devices(running(cluster, "memory-only-isolation"))
    shown = typed(cluster, "kubectl exec memory-only-isolation -- env | grep CUDA")
    assert shown == "CUDA_DEVICE_MEMORY_LIMIT_0=4096M"
    assert "/   4096MiB" in typed(cluster, "kubectl exec memory-only-isolation -- nvidia-smi")
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096}
    create(cluster, a_pod("beside", a_container(limits=limits)))
    assert (devices(running(cluster, "beside"))[0][0], cores) == (device, 0)


def test_example_3_keeps_others_off_the_device_and_gives_all_its_memory(
    cluster: LocalCluster, applied: Callable[[str], None]
) -> None:
    applied("seeds/03-exclusive.yaml")
    ((exclusive, mib, cores),) = devices(running(cluster, "training-job"))
    (seen,) = probe(cluster, "training-job", "info")["devices"]
    assert (seen["cuda_total"], cores) == (mib * MIB, 100)
    assert f"/ {mib:>6}MiB" in typed(cluster, "kubectl exec training-job -- nvidia-smi")
    shown = typed(cluster, f"kubectl get pod training-job {RECORD}")
    assert shown == f"{exclusive},NVIDIA,{mib},100:;"
    applied("seeds/02-memory-only.yaml")
    ((other, _, _),) = devices(running(cluster, "memory-only-isolation"))
    assert other != exclusive


def test_example_3_is_refused_where_every_device_is_in_use(
    cluster: LocalCluster, applied: Callable[[str], None]
) -> None:
    for name, node in (("one", "t4"), ("two", "v100"), ("three", "a100")):
        pin(cluster, name, node)
    applied("seeds/03-exclusive.yaml")
    uid = cluster.wait_for(PODS, "training-job", lambda _: True)["metadata"]["uid"]

    def says_why(claim: dict[str, Any]) -> bool:
        conditions = {c["type"]: c for c in claim.get("status", {}).get("conditions", [])}
        return bool(
            "Allocated" in conditions
            and conditions["Allocated"]["message"].startswith(
                "3/3 CardInsufficientMemory; asked 100 % of a device's memory; most free on one "
            )
        )

    cluster.wait_for(VGPU_CLAIMS, f"training-job-{uid[:8]}", says_why)
    delete_pod(cluster, "one")
    ((_, mib, _),) = devices(running(cluster, "training-job"))
    assert mib == 16384


@pytest.mark.parametrize(("node", "mib"), [("t4", 4915), ("v100", 9830), ("a100", 24576)])
def test_example_4_takes_30_percent_of_whatever_device_it_lands_on(
    cluster: LocalCluster, applied: Callable[[str], None], node: str, mib: int
) -> None:
    """The seed shows about 4.8, 9.6 and 24 GB; its own check pipes the record, which is no JSON,
    into a JSON reader, so the record's content is checked instead.
    """
    path = cluster.folder / "one.yaml"
    text = (EXAMPLES / "seeds/04-percentage.yaml").read_text()
    path.write_text(text.replace("spec:", f"spec:\n  nodeSelector: {{card: {node}}}", 1))
    label(cluster, node)
    cluster.apply(path)
    pod = running(cluster, "percentage-alloc")
    ((_, given, cores),) = devices(pod)
    assert (given, cores) == (mib, 40)
    (seen,) = probe(cluster, "percentage-alloc", "info")["devices"]
    assert seen["cuda_total"] == mib * MIB
    assert f"/ {mib:>6}MiB" in typed(cluster, "kubectl exec percentage-alloc -- nvidia-smi")
    assert record(typed(cluster, f"kubectl get pod percentage-alloc {RECORD}")) == devices(pod)


def test_a_claim_of_ones_own_serves_the_pod_that_names_it(
    cluster: LocalCluster, applied: Callable[[str], None]
) -> None:
    applied("claim.yaml")
    pod = running(cluster, "uses-small")
    claim = cluster.wait_for(VGPU_CLAIMS, "small", lambda c: is_prepared(c.get("status", {})))
    assert claim["status"]["reservedFor"]["podUID"] == pod["metadata"]["uid"]
    (seen,) = probe(cluster, "uses-small", "info")["devices"]
    assert seen["cuda_total"] == 8192 * MIB


def pin(cluster: LocalCluster, name: str, node: str) -> None:
    """Create a small pod on one node."""
    label(cluster, node)
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    create(cluster, a_pod(name, a_container(limits=limits), nodeSelector={"card": node}))
    running(cluster, name)


def label(cluster: LocalCluster, node: str) -> None:
    changes = {"metadata": {"labels": {"card": node}}}
    cluster.run(cluster.api.merge_patch(NODES, node, changes))
