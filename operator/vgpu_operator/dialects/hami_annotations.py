"""HAMi's pod annotations: the devices that a pod may use or prefers.

They apply to the whole pod. HAMi ignores an unknown policy. Here it is refused, because the pod
might land where its author does not want it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from vgpu_api import names
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput, Fault
from vgpu_api.v1alpha1 import DeviceSelector, Placement, Weights
from vgpu_api.v1alpha1.vgpuclaim import (
    MAX_MODELS,
    MAX_PATTERN,
    MAX_UUIDS,
    DevicePolicy,
    NodePolicy,
    NumaPolicy,
    RequestMode,
)
from vgpu_operator.dialects.selector_expressions import read_expression

MODES: dict[str, RequestMode] = {
    "shared": "Shared",
    "hami-core": "Shared",
    "mig": "MIG",
}
MPS = "mps"
NODE_POLICIES: dict[str, NodePolicy] = {
    "binpack": "Binpack",
    "spread": "Spread",
    "numa-first": "NUMAFirst",
}
DEVICE_POLICIES: dict[str, DevicePolicy] = {
    "binpack": "Binpack",
    "spread": "Spread",
    "numa": "NUMA",
    "numa-first": "NUMAFirst",
    "best-fit": "BestFit",
    "idle-first": "IdleFirst",
    "mutex": "Mutex",
    "topology": "Topology",
    "topology-aware": "Topology",
}
MAX_WEIGHT = 1000

_T = TypeVar("_T")
_WEIGHT = re.compile(r"(slot|core|memory)\s*=\s*([0-9]{1,9})")


def annotation_field(key: str) -> str:
    """Return the field path of an annotation."""
    return f"metadata.annotations[{key}]"


def is_true(text: str) -> bool:
    """Return True for Go's spellings of true, as HAMi does. Any other text is false."""
    return text in names.TRUE


def mode(pod: Pod) -> RequestMode:
    """Return the required mode of devices; the default is Any."""
    return mode_of(pod, names.NVIDIA_MODE) or "Any"


def mode_of(pod: Pod, key: str) -> RequestMode | None:
    """Return the mode in one annotation, or None if it is missing.

    As in HAMi, a list of modes allows each of them: `hami-core,mig` accepts both. `mps` alone is
    refused.
    """
    written = pod.metadata.annotations.get(key, "")
    words = [word.strip() for word in written.split(",") if word.strip()]
    if not words:
        return None
    modes = {_word(key, word, MODES) for word in words if word.lower() != MPS}
    if not modes:
        raise BadInput(
            field=annotation_field(key),
            value=written,
            fault=Fault.UNSUPPORTED,
            detail="no MPS daemon runs here; write shared, whose limits of memory and "
            "compute need none, or mig",
        )
    return modes.pop() if len(modes) == 1 else "Any"


def selector(pod: Pod) -> DeviceSelector | None:
    """Return the selector of devices, or None if any device may serve.

    HAMi's annotations and `vgpu.dev/device-selector` hold together.
    """
    chosen = _by_expression(pod)
    chosen = DeviceSelector(
        models=comma_list(pod, names.NVIDIA_USE_TYPE, MAX_MODELS),
        exclude_models=comma_list(pod, names.NVIDIA_NOUSE_TYPE, MAX_MODELS),
        uuids=_both(comma_list(pod, names.NVIDIA_USE_UUID, MAX_UUIDS), chosen.uuids),
        exclude_uuids=_with(comma_list(pod, names.NVIDIA_NOUSE_UUID, MAX_UUIDS), chosen),
        kinds=chosen.kinds,
    )
    return None if chosen == DeviceSelector() else chosen


def _by_expression(pod: Pod) -> DeviceSelector:
    """Return what the CEL expression of a pod selects."""
    expression = pod.metadata.annotations.get(names.ANNOTATION_DEVICE_SELECTOR, "")
    if not expression.strip():
        return DeviceSelector()
    field = annotation_field(names.ANNOTATION_DEVICE_SELECTOR)
    return read_expression(expression, field).selector(expression, field)


def _both(listed: list[str], chosen: list[str]) -> list[str]:
    """Return the UUIDs that both the annotation and the expression name."""
    if not listed or not chosen:
        return listed or chosen
    found = [uuid for uuid in listed if uuid in chosen]
    if not found:
        raise BadInput(
            field=annotation_field(names.NVIDIA_USE_UUID),
            value=", ".join(listed),
            detail=f"{names.ANNOTATION_DEVICE_SELECTOR} names none of these devices; leave one of "
            "the annotations out",
        )
    return found


def _with(excluded: list[str], chosen: DeviceSelector) -> list[str]:
    """Return the UUIDs that the annotation or the expression excludes."""
    found = list(dict.fromkeys([*excluded, *chosen.exclude_uuids]))
    if len(found) > MAX_UUIDS:
        field = annotation_field(names.NVIDIA_NOUSE_UUID)
        raise BadInput.too_many(field, len(found), MAX_UUIDS, "excluded devices")
    return found


def placement(pod: Pod) -> Placement | None:
    """Return the pod's placement preferences, or None to use the configuration's.

    Raises:
        BadInput: A policy is unknown, or the weights are invalid.
    """
    annotations = pod.metadata.annotations
    desired = Placement(
        node=_node_policy(annotations.get(names.HAMI_NODE_POLICY, "").strip()),
        device=_device_policies(annotations.get(names.HAMI_DEVICE_POLICY, "")),
        numa=_numa(annotations.get(names.NVIDIA_NUMA_BIND, "").strip()),
        weights=_weights(annotations.get(names.HAMI_DEVICE_WEIGHTS)),
    )
    return None if desired == Placement() else desired


def _node_policy(written: str) -> NodePolicy | None:
    return _word(names.HAMI_NODE_POLICY, written, NODE_POLICIES) if written else None


def _device_policies(written: str) -> list[DevicePolicy]:
    """Parse one policy, or several in order, without repetitions."""
    words = [word.strip() for word in written.split(",") if word.strip()]
    chain = [_word(names.HAMI_DEVICE_POLICY, word, DEVICE_POLICIES) for word in words]
    return list(dict.fromkeys(chain))


def _numa(written: str) -> NumaPolicy | None:
    """Return the NUMA policy for the value of a switch.

    HAMi treats an unknown value as off, and the pod would get GPUs on several NUMA nodes.
    """
    if written and not is_true(written) and written not in names.FALSE:
        switches = ("true", "false")
        raise BadInput.unsupported(annotation_field(names.NVIDIA_NUMA_BIND), written, switches)
    return "Require" if is_true(written) else None


def _weights(written: str | None) -> Weights | None:
    """Parse `slot=1,core=1,memory=3`: all three, each once, whole numbers, not all 0."""
    if written is None:
        return None
    found = [_WEIGHT.fullmatch(part.strip()) for part in written.split(",")]
    weights = {match[1]: int(match[2]) for match in found if match is not None}
    complete = len(found) == len(weights) == 3
    if not complete or not any(weights.values()) or max(weights.values()) > MAX_WEIGHT:
        raise BadInput(
            field=annotation_field(names.HAMI_DEVICE_WEIGHTS),
            value=written,
            expected="three whole numbers such as slot=1,core=1,memory=3, "
            f"each 0 to {MAX_WEIGHT} and not all 0",
        )
    return Weights(slots=weights["slot"], cores=weights["core"], memory=weights["memory"])


def _word(key: str, written: str, table: Mapping[str, _T]) -> _T:
    value = table.get(written.lower())
    if value is None:
        raise BadInput.unsupported(annotation_field(key), written, table)
    return value


def comma_list(pod: Pod, key: str, most: int) -> list[str]:
    """Return the trimmed items of an annotation without empty ones.

    Raises:
        BadInput: There are no items, more than `most`, or one is too long.
    """
    written = pod.metadata.annotations.get(key, "")
    items = [item.strip() for item in written.split(",") if item.strip()]
    if not items and written.strip():
        raise BadInput(
            field=annotation_field(key),
            value=written[:MAX_PATTERN],
            expected="a comma-separated list with at least one item: leave the annotation out",
        )
    if len(items) > most or any(len(item) > MAX_PATTERN for item in items):
        raise BadInput(
            field=annotation_field(key),
            value=written if len(written) <= MAX_PATTERN else f"{written[:MAX_PATTERN]}…",
            detail=f"must have at most {most} items of at most {MAX_PATTERN} characters",
        )
    return items
