"""What HAMi decided for pods of other vendors' devices, and what is decided here for the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch

from builders import allocation_id
from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Node, Pod
from vgpu_api.errors import BadInput
from vgpu_api.quantity import format_mib
from vgpu_api.v1alpha1 import Allocation, GPUDevice, VGPUClaim, VGPUClaimSpec
from vgpu_api.vendors import kinds
from vgpu_operator.admission.podmutation import mutate_pod
from vgpu_operator.ask import Ask
from vgpu_operator.dialects import binding_annotations, read
from vgpu_operator.dialects.containers import each_container
from vgpu_operator.engine.registers import REGISTERED, status_of
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import Plan, place
from vgpu_operator.vendors import devices_of

FOLDER = Path(os.environ.get("VENDOR_VECTORS", Path(__file__).parent / "vectors" / "vendors"))
CONFIG = ClusterConfig()
TIMED = {names.HAMI_TIME, names.HAMI_BIND_TIME, names.HAMI_BIND_PHASE} | {
    key
    for kind in kinds()
    for key, made in kind.records.more.items()
    if made.rule in ("seconds", "nanoseconds")
}
"""Written at Bind in HAMi, or of the moment: not in its answers."""


@dataclass(frozen=True, slots=True)
class Question:
    """One pod on one node that others are on, and HAMi's answer.

    `groups` says of devices that go together what they share, where HAMi decides between groups of
    one size at random.
    """

    name: str
    groups: dict[str, str]
    pod: Pod
    ledger: Ledger
    answer: dict[str, Any]


def files() -> list[Path]:
    """A file a kind of device."""
    return sorted(path for path in FOLDER.glob("*.json") if path.stem not in ("cases", "answers"))


def questions(path: Path) -> Iterator[Question]:
    """The pods of a file, each on what HAMi's earlier decisions have left.

    What HAMi decided before is what counts, so that one disagreement does not lead to others.
    """
    for case in json.loads(path.read_text()):
        ledger, node = Ledger(config=CONFIG), Node.model_validate(case["node"])
        ledger.apply_node(_ready(node))
        for device in devices_on(node):
            ledger.apply_device(device)
        groups = _groups(node)
        for number, (raw, answer) in enumerate(zip(case["pods"], case["answers"], strict=True)):
            pod = Pod.model_validate(raw)
            yield Question(f"{case['name']} {pod.metadata.name}", groups, pod, ledger, answer)
            if "devices" in answer:
                ledger.apply_claim(_claim_of(pod, answer, node.metadata.name, number))


def _groups(node: Node) -> dict[str, str]:
    registered = [(kind, device) for kind in kinds() for device in devices_of(kind, node)]
    return {
        device.id: str(device.index // 2) if kind.choice == "pairs" else device.group
        for kind, device in registered
        if kind.choice == "pairs" or device.group
    }


def _ready(node: Node) -> Node:
    ready = [{"type": "Ready", "status": "True"}]
    status = {**node.status.to_wire(), "conditions": ready}
    return Node.model_validate({**node.to_wire(), "status": status})


def devices_on(node: Node) -> list[GPUDevice]:
    """The objects of the devices that a node registers."""
    found: list[GPUDevice] = []
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


def spec_of(pod: Pod) -> VGPUClaimSpec | str:
    """What the pod's claim asks for, or why it is refused at admission; `` if for nothing."""
    try:
        ask = read(pod, CONFIG)
    except BadInput as error:
        return str(error)
    return "" if ask is None or ask.spec is None else ask.spec


def decided(question: Question, spec: VGPUClaimSpec) -> Plan:
    """Where the pod goes here."""
    return place(question.ledger.columns, Ask.of(spec, CONFIG))


def given_by_hami(answer: dict[str, Any]) -> list[list[tuple[str, int, int]]]:
    """By container: device, MiB and compute, over all kinds."""
    by_kind = list(answer["devices"].values())
    length = max(map(len, by_kind))
    return [
        [
            (each["uuid"], each["memory"], each["cores"])
            for containers in by_kind
            for each in (containers[at] if at < len(containers) else ())
        ]
        for at in range(length)
    ]


def given_here(pod: Pod, plan: Plan) -> list[list[tuple[str, int, int]]]:
    """The same of our plan."""
    return [
        [(g.uuid, g.memory_mib, g.cores) for g in plan.grants if g.request == container.name]
        for container in each_container(pod)
    ]


def limits_here(pod: Pod) -> list[dict[str, str | int]]:
    """By container: its limits of devices after admission."""
    raw = pod.to_wire()
    admitted = Pod.model_validate(jsonpatch.apply_patch(raw, mutate_pod(raw, CONFIG, None)))
    return [place.container.resources.limits for place in each_container(admitted)]


def records(pod: Pod, spec: VGPUClaimSpec, allocation: Allocation) -> dict[str, str]:
    """What the Binding carries, but for what is of the moment."""
    written = binding_annotations(pod, spec, allocation, unix_time=0)
    return {key: value for key, value in written.items() if key not in TIMED}


def allocation_of(pod: Pod, answer: dict[str, Any], node: str, number: int = 0) -> Allocation:
    """HAMi's decision as an allocation."""
    devices = [
        {
            "request": container.name,
            "name": names.device_object_name(uuid),
            "uuid": uuid,
            "index": int(uuid.rpartition("-")[2]),
            "memory": format_mib(memory),
            "cores": min(cores, 100),
        }
        for container, given in zip(each_container(pod), given_by_hami(answer), strict=False)
        for uuid, memory, cores in given
    ]
    return Allocation.model_validate(
        {"nodeName": node, "id": allocation_id(number), "devices": devices}
    )


def _claim_of(pod: Pod, answer: dict[str, Any], node: str, number: int) -> VGPUClaim:
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
