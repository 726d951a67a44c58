"""Validates claims: the rules of the schema, and those that a schema cannot express.

The CRD has the same rules where CEL can express them. They are repeated here for clusters that do
not evaluate CEL, and so that messages show the invalid value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from vgpu_api.errors import BadInput, Fault, shown
from vgpu_api.field_errors import describe
from vgpu_api.names import ANNOTATION_SCHEDULER_CLAIM, FINALIZER_IN_USE, OPERATOR_USER
from vgpu_api.v1alpha1 import VGPUClaim, VGPUClaimSpec, VGPURequest
from vgpu_api.v1alpha1.vgpuclaim import MAX_CLAIM_BYTES
from vgpu_api.vendors import kind_of
from vgpu_operator.admission.rules.denial import Denied, denying
from vgpu_operator.admission.rules.json_patch import JsonPatch, Operation
from vgpu_operator.admission.rules.raw_pod import without_nulls

_CONTAINER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_RESIZABLE = frozenset({"memory", "memory_percent", "cores"})
"""Fields of a request that may change while it holds devices (in-place resize)."""
_OF_INSTANCES = "a MIG instance has its own compute, which nothing else uses"
_CHANGEABLE = frozenset({"requests", "ttl_seconds_after_unused"})
"""Fields of the spec that may change while the claim is allocated."""


def validate_claim(
    raw_claim: dict[str, Any],
    old: dict[str, Any] | None = None,
    *,
    max_priority: int | None = None,
    user: str = "",
) -> None:
    """Refuse an invalid claim, or an update that is forbidden while the claim is allocated.

    Args:
        raw_claim: The claim as it would be stored.
        old: The stored object, on an update. An update that leaves the spec unchanged is always
            admitted, so that finalizers and labels of older claims can be written.
        max_priority: The configuration's `scheduling.maxClaimPriority`. None admits any priority.
        user: The account that writes the claim. Only the operator may create claims for other
            vendors' devices. Owner references prove nothing, because anyone can write them.

    Raises:
        Denied: With code 422. The message names each field, its value, and the valid values.
    """
    with denying():
        _refuse_large(raw_claim, old)
        raw_spec = _spec_of(raw_claim)
        if user != OPERATOR_USER and _mirrored(raw_claim) != _mirrored(old):
            raise BadInput.forbidden(
                f"metadata.annotations[{ANNOTATION_SCHEDULER_CLAIM}]",
                "the operator alone writes it, on the claim of a pod whose GPUs kube-scheduler "
                "allocates",
            )
        if old is not None and _spec_of(old) == raw_spec:
            return
        if old is not None and _mirrored(old):
            raise BadInput.forbidden(
                "spec",
                "kube-scheduler counts what the pod's ResourceClaim says; create the pod anew",
            )
        spec = _read(raw_claim, raw_spec)
        _refuse_what_the_schema_cannot_say(spec)
        if user != OPERATOR_USER:
            _refuse_other_vendors(spec, _vendors_of(_spec_of(old)))
        _refuse_priority_above(max_priority, spec, _spec_of(old))
        if old is not None and _is_allocated(old):
            _refuse_change_in_use(spec, old)


def _mirrored(raw_claim: Any) -> str:
    """Return the mark of a claim whose devices kube-scheduler has allocated; empty without."""
    found = raw_claim
    for key in ("metadata", "annotations", ANNOTATION_SCHEDULER_CLAIM):
        found = found.get(key) if isinstance(found, dict) else None  # it may be any JSON
    return found if isinstance(found, str) else ""


def claim_without_effect(raw_claim: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """Return a warning for each field of a claim that has no effect.

    Args:
        raw_claim: A claim that `validate_claim` admits.
        old: The stored object, on an update. If the spec does not change, there are no warnings.

    Raises:
        Denied: The claim is invalid.
    """
    raw_spec = _spec_of(raw_claim)
    if old is not None and _spec_of(old) == raw_spec:
        return []
    with denying():
        spec = _read(raw_claim, raw_spec)
    found = [
        f"spec.requests[{index}].{field}: has no effect: {why}"
        for index, request in enumerate(spec.requests)
        for field, why in _idle_fields(request)
    ]
    if spec.scheduling_priority and spec.binding_mode != "Immediate":
        found.append(
            "spec.schedulingPriority: has no effect: a claim that waits for its pod is decided in "
            "the order of the pod's PriorityClass"
        )
    return found


def _idle_fields(request: VGPURequest) -> Iterator[tuple[str, str]]:
    """Yield the fields of a request that have no effect in its mode."""
    if request.mode == "MIG":
        if request.core_policy != "Default":
            yield "corePolicy", _OF_INSTANCES
        if request.compute_priority is not None:
            yield "computePriority", _OF_INSTANCES
    elif request.mode == "Exclusive":
        for field, given in (
            ("memory", request.memory),
            ("memoryPercent", request.memory_percent),
            ("cores", request.cores),
            ("corePolicy", None if request.core_policy == "Default" else request.core_policy),
            ("computePriority", request.compute_priority),
        ):
            if given is not None:
                yield field, "mode Exclusive takes all of a device, without limits"
    elif request.core_policy == "Force" and not request.cores:
        yield "corePolicy", "without cores there is no share of compute to enforce"


def mutate_claim(raw_claim: dict[str, Any]) -> list[Operation]:
    """Add the operator's finalizer to a claim with binding mode Immediate.

    The operator then only has to write the status. Other claims get the finalizer when they are
    allocated; before that, their deletion does not have to wait for the operator.

    Args:
        raw_claim: The claim as it would be created.
    """
    patch = JsonPatch(raw_claim)
    kept = patch.get("metadata", "finalizers") or []
    if patch.get("spec", "bindingMode") == "Immediate" and FINALIZER_IN_USE not in kept:
        patch.set("metadata", "finalizers", value=[*kept, FINALIZER_IN_USE])
    return patch.operations


def _spec_of(raw: Any) -> Any:
    return without_nulls(raw.get("spec")) if isinstance(raw, dict) else None


def _read(raw: Any, raw_spec: Any) -> VGPUClaimSpec:
    if not isinstance(raw, dict):
        raise BadInput(field="object", value=raw, expected="a VGPUClaim")
    try:
        document = {} if raw_spec is None else {"spec": raw_spec}
        return VGPUClaim.model_validate(document, strict=True).spec
    except ValidationError as error:
        raise Denied(describe(error)) from error


def _refuse_large(raw: Any, raw_old: Any) -> None:
    """Refuse a claim that is too large, unless it is an update that does not make it larger."""
    size = _size_of(raw)
    if size > MAX_CLAIM_BYTES and size > _size_of(raw_old):
        raise BadInput(
            field="object",
            fault=Fault.TOO_LONG,
            detail=f"{size} bytes of metadata and spec, may not be more than {MAX_CLAIM_BYTES} "
            "bytes",
        )


def _size_of(raw: Any) -> int:
    """Return the size of metadata and spec as compact JSON in bytes; 0 if there is no object."""
    if not isinstance(raw, dict):
        return 0
    metadata = raw.get("metadata")
    if isinstance(metadata, dict):
        metadata = {key: value for key, value in metadata.items() if key != "managedFields"}
    written = [metadata, raw.get("spec")]
    return len(json.dumps(written, ensure_ascii=False, separators=(",", ":")).encode())


def _refuse_what_the_schema_cannot_say(spec: VGPUClaimSpec) -> None:
    for index, request in enumerate(spec.requests):
        if request.name and not _CONTAINER_NAME.fullmatch(request.name):
            raise BadInput(
                field=f"spec.requests[{index}].name",
                value=request.name,
                expected="a container's name: lower-case letters, digits and hyphens",
            )
    weights = spec.placement.weights if spec.placement is not None else None
    if weights is not None and not (weights.slots or weights.cores or weights.memory):
        raise BadInput(
            field="spec.placement.weights",
            value=weights.to_wire(),
            detail="must have one weight of 1 or more",
        )


def _vendors_of(raw_spec: Any) -> frozenset[str]:
    """Return the vendors in the requests of a stored spec, which remain allowed."""
    requests = raw_spec.get("requests") if isinstance(raw_spec, dict) else None
    found = requests if isinstance(requests, list) else []
    return frozenset(
        str(each.get("vendor", "")).lower() for each in found if isinstance(each, dict)
    )


def _refuse_other_vendors(spec: VGPUClaimSpec, stored: frozenset[str]) -> None:
    """Refuse other vendors' devices: containers of a named claim get slots of our device plugin."""
    for index, request in enumerate(spec.requests):
        vendor = request.vendor.lower()
        kind = None if vendor in stored else kind_of(vendor)
        if kind is not None:
            raise BadInput(
                field=f"spec.requests[{index}].vendor",
                value=request.vendor,
                fault=Fault.UNSUPPORTED,
                detail=f"the vendor's device plugin only serves pods that ask by {kind.count}, not "
                "claims that a pod names",
            )


def _refuse_priority_above(most: int | None, spec: VGPUClaimSpec, raw_old: Any) -> None:
    """Refuse a priority above the limit, unless it was stored before the limit was lowered."""
    priority = spec.scheduling_priority
    before = raw_old.get("schedulingPriority") if isinstance(raw_old, dict) else None
    if most is not None and priority > most and priority != before:
        raise BadInput(
            field="spec.schedulingPriority",
            value=priority,
            expected=f"no more than {most}, the scheduling.maxClaimPriority of this cluster",
        )


def _is_allocated(raw: Any) -> bool:
    status = raw.get("status") if isinstance(raw, dict) else None
    return isinstance(status, dict) and status.get("allocation") is not None


def _refuse_change_in_use(new: VGPUClaimSpec, raw_old: dict[str, Any]) -> None:
    """Refuse changes of an allocated claim, except to its ttl and the amounts of its requests."""
    try:
        old = VGPUClaim.model_validate({"spec": _spec_of(raw_old)}).spec
    except ValidationError as error:
        raise BadInput.forbidden(
            "spec",
            "may not change while the claim has an allocation, and the old spec is unreadable: "
            "delete the claim",
        ) from error
    for field in type(new).model_fields:
        if field not in _CHANGEABLE and getattr(new, field) != getattr(old, field):
            raise _frozen(f"spec.{_wire_name(VGPUClaimSpec, field)}", new, old, field)
    old_requests = {request.name: request for request in old.requests}
    if {request.name for request in new.requests} != set(old_requests):
        names = sorted(request.name for request in new.requests)
        raise BadInput(
            field="spec.requests",
            value=names,
            detail=f"must stay {shown(sorted(old_requests))} while the claim has an allocation",
        )
    has_init = any(request.phase == "Init" for request in new.requests)
    if has_init and [request.name for request in new.requests] != list(old_requests):
        raise BadInput(
            field="spec.requests",
            value=[request.name for request in new.requests],
            detail=f"must stay in the order {shown(list(old_requests))}, which says what runs "
            "beside an init container, while the claim has an allocation",
        )
    for index, request in enumerate(new.requests):
        before = old_requests[request.name]
        for field in type(request).model_fields:
            if field not in _RESIZABLE and getattr(request, field) != getattr(before, field):
                path = f"spec.requests[{index}].{_wire_name(VGPURequest, field)}"
                raise _frozen(path, request, before, field)
        percent = request.memory_percent
        if percent not in (None, before.memory_percent) and not _has_totals(raw_old, request.name):
            raise BadInput(
                field=f"spec.requests[{index}].memoryPercent",
                value=percent,
                detail="must be given as memory while the claim has an allocation, which records "
                "the memory of devices only if they were requested by percentage",
            )


def _has_totals(raw_claim: dict[str, Any], request: str) -> bool:
    """Return True if the status records the memory of each device, the base of percentages."""
    allocation = raw_claim["status"]["allocation"]
    devices = allocation.get("devices") if isinstance(allocation, dict) else None
    mine = [
        device
        for device in (devices if isinstance(devices, list) else [])
        if isinstance(device, dict) and device.get("request", "") == request
    ]
    return bool(mine) and all(device.get("deviceMemory") for device in mine)


def _wire_name(model: type[VGPUClaimSpec] | type[VGPURequest], field: str) -> str:
    return model.model_fields[field].alias or field


def _frozen(
    path: str, new: VGPUClaimSpec | VGPURequest, old: VGPUClaimSpec | VGPURequest, field: str
) -> BadInput:
    alias = _wire_name(type(new), field)
    now, before = (item.to_wire().get(alias) for item in (new, old))
    return BadInput(
        field=path,
        value=now,
        detail=f"must stay {shown(before)} while the claim has an allocation",
    )
