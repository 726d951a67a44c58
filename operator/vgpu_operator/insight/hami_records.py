"""Reads what HAMi recorded: the devices of a node, and the devices that a pod uses.

A node's register is an annotation with one entry per GPU, in JSON, or in a colon-separated form
until HAMi 2.6. A pod's record has one part per container, each with `UUID,vendor,MiB,cores:` for
every device and `;` at its end. Init containers come first; versions that do not record them have
parts for app containers only. Source: HAMi v2.10, pkg/device/devices.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_api import names
from vgpu_api.core.pod import Container, Pod
from vgpu_api.errors import BadInput

_ALLOCATED = f"metadata.annotations[{names.HAMI_DEVICES_ALLOCATED}]"
_REGISTER = f"metadata.annotations[{names.HAMI_NODE_REGISTER}]"
_STARTING = "allocating"
_FORMER_FIELDS = (7, 9)
"""The numbers of fields of a device in the former form of the register."""
_SHARED = ("", "hami-core")
"""The modes in which HAMi divides a GPU by its library."""


@dataclass(frozen=True, slots=True)
class RegisteredGpu:
    """A GPU in a node's register.

    Attributes:
        uuid: Its UUID.
        index: Its number on the node.
        slots: The largest number of containers that HAMi lets share it.
        memory_mib: The memory that HAMi allocates, after its scaling.
        cores: The compute that HAMi allocates, in percent, after its scaling.
        mode: `hami-core`, `mig` or `mps`.
    """

    uuid: str
    index: int
    slots: int
    memory_mib: int
    cores: int
    mode: str

    @property
    def is_shared(self) -> bool:
        """True if HAMi divides the GPU by its library, and not by MIG or MPS."""
        return self.mode in _SHARED


@dataclass(frozen=True, slots=True)
class RecordedGpu:
    """A GPU, or a part of one, that a container uses."""

    uuid: str
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True)
class RecordedPod:
    """A pod that HAMi gave devices, with the devices of the containers that still run.

    Attributes:
        pod: The pod.
        containers: By container, its devices; not those of init containers that have ended.
        is_starting: True while its containers are still being given their devices.
    """

    pod: Pod
    containers: Mapping[str, Sequence[RecordedGpu]]
    is_starting: bool

    @property
    def place(self) -> str:
        """Return the pod's namespace and name."""
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"


def is_recorded(pod: Pod) -> bool:
    """Return True if HAMi gave the pod devices. Our own Bindings write the same annotation."""
    metadata = pod.metadata
    return (
        names.HAMI_DEVICES_ALLOCATED in metadata.annotations
        and metadata.labels.get(names.LABEL_ADMITTED) != names.ADMITTED
    )


def read_register(annotations: Mapping[str, str]) -> Sequence[RegisteredGpu]:
    """Return the GPUs in a node's register.

    Raises:
        BadInput: There is no register, it cannot be read, or it names no GPU or one twice.
    """
    text = annotations.get(names.HAMI_NODE_REGISTER)
    if not text:
        raise BadInput.required(
            _REGISTER, "HAMi's device plugin has not registered the node's GPUs"
        )
    try:
        found = list(_json(text) if text.lstrip().startswith("[") else _former(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(field=_REGISTER, value=text, expected="a list of GPUs") from error
    if not found:
        raise BadInput(field=_REGISTER, value=text, expected="a list with at least one GPU")
    if len({gpu.uuid for gpu in found}) < len(found):
        raise BadInput(field=_REGISTER, value=text, detail="names a GPU twice")
    return found


def _json(text: str) -> Iterator[RegisteredGpu]:
    for entry in json.loads(text):
        yield _positive(
            RegisteredGpu(
                uuid=str(entry["id"]),
                index=int(entry.get("index", 0)),
                slots=int(entry["count"]),
                memory_mib=int(entry["devmem"]),
                cores=int(entry["devcore"]),
                mode=str(entry.get("mode", "")),
            )
        )


def _former(text: str) -> Iterator[RegisteredGpu]:
    for entry in filter(None, text.split(":")):
        fields = entry.split(",")
        if len(fields) not in _FORMER_FIELDS:
            raise ValueError(f"{len(fields)} fields")
        uuid, slots, memory, cores, *_ = fields
        index, mode = fields[7:] or ("0", "")
        yield _positive(RegisteredGpu(uuid, int(index), int(slots), int(memory), int(cores), mode))


def _positive(gpu: RegisteredGpu) -> RegisteredGpu:
    if not gpu.uuid or gpu.slots <= 0 or gpu.memory_mib <= 0 or gpu.cores <= 0:
        raise ValueError(f"{gpu.uuid}: an amount is not positive")
    return gpu


def read_record(pod: Pod, *, count_resource: str) -> RecordedPod:
    """Return what a pod uses, by HAMi's record.

    Args:
        pod: A pod that is bound to a node and has HAMi's record.
        count_resource: The resource with which containers ask for a number of GPUs.

    Raises:
        BadInput: The record cannot be read, or contradicts the pod.
    """
    annotations, spec = pod.metadata.annotations, pod.spec
    node = annotations.get(names.HAMI_NODE, spec.node_name)
    if node != spec.node_name:
        raise BadInput(
            field=f"metadata.annotations[{names.HAMI_NODE}]",
            value=node,
            detail=f"the pod runs on node {spec.node_name}",
        )
    if annotations.get(names.HAMI_MIG_ALLOCATIONS):
        raise BadInput.forbidden(
            f"metadata.annotations[{names.HAMI_MIG_ALLOCATIONS}]",
            "HAMi made a MIG instance for the pod, and would remove it: wait until the pod ends",
        )
    text = annotations[names.HAMI_DEVICES_ALLOCATED]
    recorded = [(container, _devices(text, part)) for container, part in _parts(pod, text)]
    if not any(devices for _, devices in recorded):
        raise BadInput(field=_ALLOCATED, value=text, detail="names no GPU")
    ended, running = _ended_init(pod), {}
    is_starting = annotations.get(names.HAMI_BIND_PHASE) == _STARTING
    for container, devices in recorded:
        _agree(container, devices, text, count_resource)
        if devices and container.name not in ended:
            running[container.name] = devices
            is_starting |= container in spec.init_containers and not container.is_sidecar
    return RecordedPod(pod, running, is_starting or pod.status.phase != "Running")


def _ended_init(pod: Pod) -> frozenset[str]:
    """Return the ordinary init containers that have ended."""
    sidecars = {each.name for each in pod.spec.init_containers if each.is_sidecar}
    return frozenset(
        status.name
        for status in pod.status.init_container_statuses
        if "terminated" in status.state and status.name not in sidecars
    )


def _parts(pod: Pod, text: str) -> Iterator[tuple[Container, str]]:
    """Yield each recorded container with its part."""
    parts = text.split(";")
    if parts[-1] == "":
        parts.pop()
    every = [*pod.spec.init_containers, *pod.spec.containers]
    for containers in (every, pod.spec.containers):
        if len(parts) == len(containers):
            yield from zip(containers, parts, strict=True)
            return
    detail = f"has {len(parts)} parts, and the pod has {len(every)} containers"
    raise BadInput(field=_ALLOCATED, value=text, detail=detail)


def _devices(text: str, part: str) -> Sequence[RecordedGpu]:
    found = []
    for entry in filter(None, part.split(":")):
        try:
            uuid, _, memory, cores = entry.split(",")
            device = RecordedGpu(uuid, int(memory), int(cores))
        except ValueError as error:
            expected = "UUID,vendor,MiB,cores: for each GPU"
            raise BadInput(field=_ALLOCATED, value=text, expected=expected) from error
        if not uuid or device.memory_mib <= 0 or not 0 <= device.cores <= 100:
            detail = f"{entry}: no GPU has such amounts"
            raise BadInput(field=_ALLOCATED, value=text, detail=detail)
        found.append(device)
    return found


def _agree(
    container: Container, devices: Sequence[RecordedGpu], text: str, count_resource: str
) -> None:
    """Refuse a part that contradicts what its container asks for."""
    asked = _count(container.requested(count_resource))
    if asked != len(devices):
        detail = f"container {container.name} asks for {asked} GPUs and has {len(devices)}"
        raise BadInput(field=_ALLOCATED, value=text, detail=detail)
    if len({device.uuid for device in devices}) < len(devices):
        detail = f"container {container.name} has a GPU twice"
        raise BadInput(field=_ALLOCATED, value=text, detail=detail)
    if len({(device.memory_mib, device.cores) for device in devices}) > 1:
        detail = (
            f"container {container.name} has different amounts of its GPUs, and a claim has one "
            "amount for all GPUs of a container: wait until the pod ends"
        )
        raise BadInput(field=_ALLOCATED, value=text, detail=detail)


def _count(value: Any) -> int:
    try:
        return int(value or 0)
    except ValueError:
        return -1
