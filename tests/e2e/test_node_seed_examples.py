"""The seed's eight worked examples on a real node, checked literally by the seed's own commands.

The files are those of `examples/`; the test only replaces the image and, in example 7, the device's
UUID. Examples about choosing among nodes get simulated nodes beside the real one: objects without a
kubelet, so pods are placed there and do not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from real_node import WORKLOAD, Json, RealNode, until

SEEDS = Path(__file__).parents[2] / "examples" / "seeds"
ALLOCATED = r"-o jsonpath='{.metadata.annotations.hami\.io/vgpu-devices-allocated}' && echo"
NODES = (
    r"kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name}{"
    r'"\t"}{.metadata.annotations.hami\.io/node-nvidia-register}{"\n"}{end}'
    "'"
)
PINNED = "GPU-e3b5f6a0-1234-5678-abcd-ef1234567890"
OPERATOR = ("--as=system:serviceaccount:vgpu-system:vgpu-operator", "--as-group=system:masters")
"""Whom the policies let describe a device; kubectl reads before it writes, hence the group."""
REAL = "node1"


class Bench:
    """The node, a namespace for the test, and a shell in which kubectl uses both."""

    def __init__(self, node: RealNode, namespace: str) -> None:
        self.node = node
        self.namespace = namespace
        self._kubeconfig = node.folder / "pki" / f"{namespace}.kubeconfig"
        self._kubeconfig.write_bytes((node.folder / "pki" / "admin.kubeconfig").read_bytes())
        self.types(f"kubectl config set-context --current --namespace={namespace}")

    def types(self, line: str) -> str:
        """Return the output of a command line, as if a user had typed it."""
        return self.node.run(
            "env", f"KUBECONFIG={self._kubeconfig}", "bash", "-o", "pipefail", "-c", line
        ).strip()

    def apply(self, file: str, **changes: str) -> list[str]:
        """Create the objects of an example with the test's image; return the pods' names."""
        text = (SEEDS / file).read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        pods = [_in_our_image(pod) for pod in yaml.safe_load_all(text)]
        for pod in pods:
            pod["metadata"]["namespace"] = self.namespace
        self.node.apply(*pods)
        return [pod["metadata"]["name"] for pod in pods]

    def runs(self, *pods: str) -> None:
        """Wait until the pods run."""
        self.node.ready(self.namespace, *pods)

    def record(self, pod: str) -> list[tuple[str, int, int]]:
        """Return UUID, MiB and cores of each device of a pod, read with the seed's command."""
        return devices(self.types(f"kubectl get pod {pod} {ALLOCATED}"))

    def bound(self, pod: str) -> str:
        """Return the node that a pod was bound to, once it is bound."""

        def name() -> str:
            spec = self.node.get("pod", pod, self.namespace)["spec"]
            return str(spec.get("nodeName", ""))

        return until(name, f"{pod} to be bound")

    def close(self) -> None:
        """Delete the pods with a short grace period."""
        self.types("kubectl delete pods --all --grace-period=1 --wait=false")
        self._kubeconfig.unlink()


def _in_our_image(pod: Json) -> Json:
    for container in pod["spec"]["containers"]:
        container["image"] = WORKLOAD
    return dict(pod)


def devices(record: str) -> list[tuple[str, int, int]]:
    """Return HAMi's record, parsed as a reader of HAMi would."""
    entries = [entry.split(",") for entry in record.replace(";", "").split(":") if entry]
    return [(uuid, int(mib), int(cores)) for uuid, _, mib, cores in entries]


@pytest.fixture
def bench(node: RealNode, namespace: str) -> Iterator[Bench]:
    bench = Bench(node, namespace)
    yield bench
    bench.close()


@contextmanager
def only(bench: Bench, *wanted: Json) -> Iterator[None]:
    """Use only these devices of the real node: cordon the others."""
    kept = {device["id"].lower() for device in wanted}
    others = [c["id"].lower() for c in registered(bench)[REAL] if c["id"].lower() not in kept]
    _cordon(bench, others, cordoned=True)
    try:
        yield
    finally:
        _cordon(bench, others, cordoned=False)


def _cordon(bench: Bench, devices: Sequence[str], *, cordoned: bool) -> None:
    patch = json.dumps({"spec": {"cordoned": cordoned}})
    names = [f"gpudevice/{name}" for name in devices]
    bench.node.kubectl("patch", *names, "--type=merge", "-p", patch)


@contextmanager
def paper_node(
    node: RealNode, name: str, devices: Sequence[tuple[str, str, int]]
) -> Iterator[None]:
    """Create a simulated node: UUID, model and MiB of each device.

    It stays ready for 50 s, until Kubernetes notices that it has no kubelet.
    """
    labels = {"kubernetes.io/hostname": name}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    node.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "50", "nvidia.com/gpu": str(10 * len(devices))}
    status: Json = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
        ],
    }
    try:
        _describe(node, f"node/{name}", status)
        for index, (uuid, model, mib) in enumerate(devices):
            device = f"gpudevice/{uuid.lower()}"
            api = {"apiVersion": "vgpu.dev/v1alpha1", "kind": "GPUDevice"}
            metadata = {"name": uuid.lower()}
            node.apply({**api, "metadata": metadata, "spec": {"nodeName": name}})
            amount = {"memory": f"{mib}Mi", "cores": 100, "slots": 10}
            facts = {"vendor": "nvidia", "uuid": uuid, "index": index, "model": model}
            _describe(node, device, {**facts, "capacity": amount, "allocatable": amount}, *OPERATOR)
        until(
            lambda: not node.get("node", name)["spec"].get("taints"),
            f"node {name} to take pods",
        )
        yield
    finally:
        for uuid, _, _ in devices:
            node.attempt("kubectl", "delete", "gpudevice", uuid.lower(), "--wait=false")
        node.attempt("kubectl", "delete", "node", name, "--wait=false")


def _describe(node: RealNode, what: str, status: Json, *options: str) -> None:
    """Write the status of an object."""
    patch = json.dumps({"status": status})
    node.kubectl("patch", what, "--subresource=status", "--type=merge", "-p", patch, *options)


def test_example_1_two_pods_share_one_device_with_8192_mib_each(bench: Bench) -> None:
    """The node has one device, like the seed's: with several, the default policy spreads pods."""
    with only(bench, registered(bench)[REAL][0]):
        pods = bench.apply("01-two-pods-one-card.yaml")
        bench.runs(*pods)
    ((device, mib, cores),) = bench.record("inference-service-a")
    assert bench.record("inference-service-b") == [(device, mib, cores)]
    assert (mib, cores) == (8192, 50)
    for pod in pods:
        assert "/   8192MiB" in bench.types(f"kubectl exec {pod} -- nvidia-smi")
        filled = json.loads(bench.types(f"kubectl exec {pod} -- vgpu-probe fill"))
        assert filled["filled"] == 8192 << 20


def test_example_2_memory_is_limited_and_compute_is_not(bench: Bench) -> None:
    bench.runs(*bench.apply("02-memory-only.yaml"))
    shown = bench.types("kubectl exec memory-only-isolation -- env | grep CUDA")
    assert shown == "CUDA_DEVICE_MEMORY_LIMIT_0=4096M"


def test_example_3_has_a_whole_device_and_keeps_others_off_it(bench: Bench) -> None:
    bench.runs(*bench.apply("03-exclusive.yaml"))
    ((device, mib, cores),) = bench.record("training-job")
    assert cores == 100
    assert f"/ {mib:>6}MiB" in bench.types("kubectl exec training-job -- nvidia-smi")
    bench.runs(*bench.apply("02-memory-only.yaml"))
    assert bench.record("memory-only-isolation")[0][0] != device


def test_example_4_takes_30_percent_of_whatever_device_it_lands_on(bench: Bench) -> None:
    """The seed pipes the record into a JSON reader; it is not JSON, so its content is checked."""
    bench.runs(*bench.apply("04-percentage.yaml"))
    ((device, mib, cores),) = bench.record("percentage-alloc")
    totals = {c["id"]: c["devmem"] for c in registered(bench)[REAL]}
    assert (mib, cores) == (totals[device] * 30 // 100, 40)
    assert f"/ {mib:>6}MiB" in bench.types("kubectl exec percentage-alloc -- nvidia-smi")


def test_example_5_goes_to_the_emptier_node_and_there_to_a_device_in_use(bench: Bench) -> None:
    """The real node is emptier than the simulated one, on which a pod has been placed."""
    bench.runs(*bench.apply("02-memory-only.yaml"))
    ((in_use, _, _),) = bench.record("memory-only-isolation")
    empty_device = ("GPU-00000000-1111-4111-8111-000000000001", "Tesla T4", 16384)
    with paper_node(bench.node, "paper-5", [empty_device]):
        assert bench.apply("05-policies.yaml") == ["binpack-inference"]
        assert bench.bound("binpack-inference") == "paper-5"
        bench.types("kubectl delete pod binpack-inference --grace-period=0 --force")
    bench.apply("05-policies.yaml")
    bench.runs("binpack-inference")
    assert bench.record("binpack-inference") == [(in_use, 2048, 25)]


def test_example_5_four_pods_gather_on_one_device(bench: Bench) -> None:
    pods = bench.apply("05-policies-four-pods.yaml")
    bench.runs(*pods)
    line = (
        'for i in 1 2 3 4; do echo "Pod binpack-test-$i:"; '
        f"kubectl get pod binpack-test-$i {ALLOCATED}; done"
    )
    records = [devices(said) for said in bench.types(line).splitlines()[1::2]]
    assert len({device for ((device, _, _),) in records}) == 1
    assert {(mib, cores) for ((_, mib, cores),) in records} == {(2048, 20)}


def registered(bench: Bench) -> dict[str, list[Json]]:
    """Return the devices of each node, read with the seed's command."""
    lines = [line.partition("\t") for line in bench.types(NODES).splitlines()]
    return {name: json.loads(text) for name, _, text in lines if text}


def test_example_6_pods_get_devices_of_models_that_they_allow(bench: Bench) -> None:
    """Two of the three run on the real node; the third finds its only V100 on a simulated one."""
    pods = bench.apply("06-models.yaml")
    bench.runs("a100-only-task", "exclude-old-gpu")
    model_of = {device["id"]: device["type"] for device in registered(bench)[REAL]}
    assert "A100" in model_of[bench.record("a100-only-task")[0][0]]
    assert not re.search("T4|P100", model_of[bench.record("exclude-old-gpu")[0][0]])
    assert REAL in bench.types('kubectl describe pod a100-only-task | grep -i "node:"')
    assert "A100" in bench.types("kubectl exec a100-only-task -- nvidia-smi -L")
    bench.node.told(bench.namespace, "selective-gpu", "CardTypeMismatch")
    v100 = ("GPU-00000000-1111-4111-8111-000000000002", "Tesla V100-SXM2-32GB", 32768)
    with paper_node(bench.node, "paper-6", [v100]):
        assert bench.bound(pods[2]) == "paper-6"
        bench.types("kubectl delete pod selective-gpu --grace-period=0 --force")


def test_example_7_gets_the_very_device_and_the_other_pod_any_but_that(bench: Bench) -> None:
    """The UUID is one of the real node's; a UUID that does not exist keeps the pod waiting."""
    pinned = registered(bench)[REAL][2]
    bench.apply("07-uuids.yaml", **{PINNED: pinned["id"]})
    bench.runs("uuid-pinned-task", "uuid-exclude-task")
    assert bench.record("uuid-pinned-task") == [(pinned["id"], 8192, 100)]
    assert bench.record("uuid-exclude-task")[0][0] != pinned["id"]
    shown = bench.types("kubectl exec uuid-pinned-task -- nvidia-smi -L")
    assert shown == f"GPU 0: {pinned['type'].removeprefix('NVIDIA-')} (UUID: {pinned['id']})"


def test_example_7_waits_for_a_device_that_is_nowhere_and_is_placed_when_it_comes(
    bench: Bench,
) -> None:
    bench.apply("07-uuids.yaml")
    bench.node.told(bench.namespace, "uuid-pinned-task", "CardUuidMismatch")
    with paper_node(bench.node, "paper-7", [(PINNED, "Tesla V100-SXM2-32GB", 32768)]):
        assert bench.bound("uuid-pinned-task") == "paper-7"
        assert bench.record("uuid-pinned-task") == [(PINNED, 8192, 100)]
        bench.types("kubectl delete pod uuid-pinned-task --grace-period=0 --force")


def test_example_8_gets_two_devices_of_one_numa_node(bench: Bench) -> None:
    bench.runs(*bench.apply("08-numa.yaml"))
    record = bench.record("numa-aware-training")
    assert [(mib, cores) for _, mib, cores in record] == [(32768, 100)] * 2
    numa_of = {device["id"]: device["numa"] for device in registered(bench)[REAL]}
    assert len({numa_of[device] for device, _, _ in record}) == 1
    matrix = bench.types("kubectl exec numa-aware-training -- nvidia-smi topo -m").splitlines()
    assert len({line.split()[-1] for line in matrix[1:]}) == 1


def test_example_8_waits_where_no_numa_node_has_two_and_runs_when_one_has(bench: Bench) -> None:
    """One device of each pair of large ones is taken: two are free, one on each NUMA node."""
    large = [device for device in registered(bench)[REAL] if device["devmem"] >= 32768]
    taken: dict[int, str] = {}
    for device in large:
        if device["numa"] not in taken:
            taken[device["numa"]] = f"neighbour-{device['numa']}"
            pod = yaml.safe_load((SEEDS / "02-memory-only.yaml").read_text())
            pod["metadata"] |= {"name": taken[device["numa"]], "namespace": bench.namespace}
            pod["metadata"]["annotations"] = {"nvidia.com/use-gpuuuid": device["id"]}
            bench.node.apply(_in_our_image(pod))
    bench.runs(*taken.values())
    bench.apply("08-numa.yaml")
    bench.node.told(bench.namespace, "numa-aware-training", "NumaNotFit")
    bench.types(f"kubectl delete pod {taken[1]} --grace-period=1")
    bench.runs("numa-aware-training")
