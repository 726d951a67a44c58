"""HAMi's decisions for pods with devices of other vendors, compared with ours."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch

from builders import a_device, allocation_id
from vgpu_api import names
from vgpu_api.config import ClusterConfig, VendorsConfig
from vgpu_api.core import Node, Pod
from vgpu_api.errors import BadInput
from vgpu_api.quantity import format_mib
from vgpu_api.v1alpha1 import Allocation, GPUDevice, VGPUClaim, VGPUClaimSpec
from vgpu_api.vendors import kinds
from vgpu_operator.admission.rules.pod_mutation import mutate_pod
from vgpu_operator.demand import Demand
from vgpu_operator.dialects import binding_annotations, read
from vgpu_operator.dialects.containers import each_container
from vgpu_operator.engine.devices.registers import REGISTERED, status_of
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import Plan, place
from vgpu_operator.placement.mig_geometry import bits_of
from vgpu_operator.vendors import devices_of

FOLDER = Path(os.environ.get("VENDOR_VECTORS", Path(__file__).parent / "vectors" / "vendors"))
HAMI_EXAMPLES = FOLDER / "hami-examples.json"
"""The pods of HAMi's own examples, NVIDIA's too."""
CONFIG = ClusterConfig(vendors=VendorsConfig(leave_alone=()))
TIMED = {names.HAMI_TIME, names.HAMI_BIND_TIME, names.HAMI_BIND_PHASE} | {
    key
    for kind in kinds()
    for key, made in kind.records.more.items()
    if made.rule in ("seconds", "nanoseconds")
}
"""Written at Bind in HAMi, or of the moment: not in its answers."""


@dataclass(frozen=True, slots=True)
class Question:
    """A pod on a node with other pods, and HAMi's answer.

    `groups` has what the devices of a group share, if HAMi picks at random between groups of one
    size.
    """

    name: str
    groups: dict[str, str]
    pod: Pod
    node: Node
    ledger: Ledger
    answer: dict[str, Any]


def files() -> list[Path]:
    """Return the files, one for each kind of device."""
    others = ("cases", "answers", HAMI_EXAMPLES.stem)
    return sorted(path for path in FOLDER.glob("*.json") if path.stem not in others)


def a_ledger(nodes: Iterable[Node], claims: Iterable[VGPUClaim] = ()) -> Ledger:
    """Return a ledger as after a start, from the objects alone."""
    ledger = Ledger(config=CONFIG)
    for node in nodes:
        ledger.apply_node(node)
        for device in devices_on(node):
            ledger.apply_device(device)
    for claim in claims:
        ledger.apply_claim(claim)
    return ledger


def in_use(ledger: Ledger) -> dict[str, tuple[int, int, int, int]]:
    """Return slots, cores, MiB and bits in use of each device, by UUID."""
    columns = ledger.columns
    return {
        columns.uuid[number]: columns.in_use(number)
        for number in map(columns.number_of, columns.state())
    }


def a_claim_of(spec: VGPUClaimSpec, plan: Plan, number: int) -> VGPUClaim:
    """Return a claim with the allocation of a plan, and a number that no other claim has."""
    allocation = plan.allocation().to_wire() | {"id": allocation_id(number)}
    metadata = {"name": f"claim-{number}", "namespace": "default", "uid": f"uid-{number}"}
    return VGPUClaim.read(
        {
            "metadata": metadata | {"resourceVersion": str(number + 1)},
            "spec": spec.to_wire(),
            "status": {"allocation": allocation, "conditions": []},
        }
    )


def questions(path: Path) -> Iterator[Question]:
    """Yield the pods of a file, each on the state that HAMi's earlier decisions have left.

    The ledger follows HAMi's decisions and not ours, so that one disagreement does not cause
    others.
    """
    for case in json.loads(path.read_text()):
        ledger, node = Ledger(config=CONFIG), Node.model_validate(case["node"])
        ledger.apply_node(_ready(node))
        for device in devices_on(node):
            ledger.apply_device(device)
        groups = _groups(node)
        for number, (name, pod, answer) in enumerate(_asked(case)):
            yield Question(name, groups, pod, node, ledger, answer)
            if "devices" in answer:
                ledger.apply_claim(_claim_of(pod, answer, node, number))


def answers(path: Path) -> Iterator[tuple[str, Pod, Node, dict[str, Any]]]:
    """Yield the name, the pod, the node and HAMi's answer of each question of a file."""
    for case in json.loads(path.read_text()):
        node = Node.model_validate(case["node"])
        for name, pod, answer in _asked(case):
            yield name, pod, node, answer


def _asked(case: dict[str, Any]) -> Iterator[tuple[str, Pod, dict[str, Any]]]:
    for raw, answer in zip(case["pods"], case["answers"], strict=True):
        pod = Pod.model_validate(raw)
        yield f"{case['name']} {pod.metadata.name}", pod, answer


def _groups(node: Node) -> dict[str, str]:
    registered = [(kind, device) for kind in kinds() for device in devices_of(kind, node)]
    sizes = {"pairs": 2, "wings": 4}
    return {
        device.id: str(device.index // sizes[kind.choice]) if kind.choice in sizes else device.group
        for kind, device in registered
        if kind.choice in sizes or device.group
    }


def _ready(node: Node) -> Node:
    ready = [{"type": "Ready", "status": "True"}]
    status = {**node.status.to_wire(), "conditions": ready}
    return Node.model_validate({**node.to_wire(), "status": status})


def devices_on(node: Node) -> list[GPUDevice]:
    """Return the objects of the devices that a node registers."""
    written = node.metadata.annotations.get(names.HAMI_NODE_REGISTER, "[]")
    found = [
        a_device(
            uuid=each["id"],
            node=node.metadata.name,
            index=each["index"],
            memory_mib=each["devmem"],
            slots=each["count"],
            model=each["type"].removeprefix("NVIDIA-"),
            numa=each["numa"],
        )
        for each in json.loads(written)
    ]
    for kind in kinds():
        registered = devices_of(kind, node)
        for device in registered:
            peers = [each.id for each in registered if each.group == device.group != ""]
            status = status_of(kind, device, peers, reason=REGISTERED, why="", unix=0.0)
            name = names.device_object_name(device.id)
            wire = {
                "metadata": {"name": name, "resourceVersion": "1"},
                "spec": {"nodeName": node.metadata.name},
                "status": status,
            }
            found.append(GPUDevice.model_validate(wire))
    return found


def _indexes_on(node: Node) -> dict[str, int]:
    """Return the index of each device that a node registers, by UUID."""
    written = json.loads(node.metadata.annotations.get(names.HAMI_NODE_REGISTER, "[]"))
    return {each["id"]: each["index"] for each in written} | {
        device.id: device.index for kind in kinds() for device in devices_of(kind, node)
    }


def spec_of(pod: Pod) -> VGPUClaimSpec | str:
    """Return the spec of the pod's claim or the refusal at admission; `` if it requests nothing."""
    try:
        demand = read(pod, CONFIG)
    except BadInput as error:
        return str(error)
    return "" if demand is None or demand.spec is None else demand.spec


def decided(question: Question, spec: VGPUClaimSpec) -> Plan:
    """Return the plan for the pod."""
    return place(question.ledger.columns, Demand.of(spec, CONFIG))


def given_by_hami(answer: dict[str, Any], node: Node) -> list[list[tuple[str, int, int]]]:
    """By container: device, MiB and compute (numbered cores as bits), over all kinds.

    What stands for memory of which a request takes none is 0 here, and units of compute are percent
    of those that the device has.
    """
    length = max(map(len, answer["devices"].values()))
    kind_by_word = {kind.word: kind for kind in kinds()}
    # HAMi v2.10.0 keeps containers without a device under the models that the node registers.
    words = {*kind_by_word, "NVIDIA"}
    given = {word: its for word, its in answer["devices"].items() if word in words}
    units = {
        device.id: device.cores
        for word in given
        if (kind := kind_by_word.get(word)) is not None
        if kind.cores is not None and kind.cores.units
        for device in devices_of(kind, node)
    }
    return [
        [
            (
                each["uuid"],
                0 if word in kind_by_word and kind_by_word[word].counted else each["memory"],
                each["cores"] * 100 // units.get(each["uuid"], 100),
            )
            for word, containers in given.items()
            for each in (containers[at] if at < len(containers) else ())
        ]
        for at in range(length)
    ]


def given_here(pod: Pod, plan: Plan) -> list[list[tuple[str, int, int]]]:
    """Return the devices of our plan in the same form."""
    return [
        [
            (grant.uuid, grant.memory_mib, bits_of(grant.core_ids) or grant.cores)
            for grant in plan.grants
            if grant.request == container.name
        ]
        for container in each_container(pod)
    ]


def limits_here(pod: Pod) -> list[dict[str, str | int]]:
    """Return, by container, its limits of devices after admission."""
    raw = pod.to_wire()
    admitted = Pod.model_validate(jsonpatch.apply_patch(raw, mutate_pod(raw, CONFIG, None)))
    return [place.container.resources.limits for place in each_container(admitted)]


def records(pod: Pod, spec: VGPUClaimSpec, allocation: Allocation, node: Node) -> dict[str, str]:
    """Return the annotations of the Binding, without times."""
    written = binding_annotations(pod, spec, allocation, node=node, unix_time=0)
    return {key: value for key, value in written.items() if key not in TIMED}


def allocation_of(pod: Pod, answer: dict[str, Any], node: Node, number: int = 0) -> Allocation:
    """Return HAMi's decision as an allocation."""
    index_of = _indexes_on(node)
    each_of = {
        kind.word: kind.numbered_cores.each for kind in kinds() if kind.numbered_cores is not None
    }
    (each,) = {each_of.get(word, 0) for word in answer["devices"]} or (0,)
    written = json.loads(answer["annotations"].get("assigned-containers", "{}"))
    parts = {container: part["profileName"] for container, part in written.items()}
    devices = [
        {
            "request": container.name,
            "name": names.device_object_name(uuid),
            "uuid": uuid,
            "index": index_of[uuid],
            "memory": format_mib(memory),
            **(_numbered(cores, each) if each else {"cores": min(cores, 100)}),
            **({"part": parts[container.name]} if container.name in parts else {}),
        }
        for container, given in zip(each_container(pod), given_by_hami(answer, node), strict=False)
        for uuid, memory, cores in given
    ]
    return Allocation.model_validate(
        {"nodeName": node.metadata.name, "id": allocation_id(number), "devices": devices}
    )


def _numbered(bits: int, each: int) -> dict[str, Any]:
    """Return numbered cores in the form of an allocation."""
    ids = [core for core in range(each) if bits >> core & 1]
    return {"cores": len(ids) * 100 // each, "coreIDs": ids}


def _claim_of(pod: Pod, answer: dict[str, Any], node: Node, number: int) -> VGPUClaim:
    spec = spec_of(pod)
    assert isinstance(spec, VGPUClaimSpec), spec
    return VGPUClaim.model_validate(
        {
            "metadata": {
                "name": f"claim-{number}",
                "namespace": "default",
                "uid": f"uid-{number}",
                "resourceVersion": "1",
            },
            "spec": spec.to_wire(),
            "status": {
                "allocation": allocation_of(pod, answer, node, number).to_wire(),
                "conditions": [],
            },
        }
    )
