"""`kubectl vgpu resize POD|CLAIM`: change the memory or the compute of a slice while it is in use.

The command patches the claim's spec, then reports the outcome from the condition `Resized`. The
patch tests the request's name first, so it never changes another container's request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_api import conditions
from vgpu_api.conditions import find
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim, VGPURequest
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import NotFound
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.subjects import claim_of
from vgpu_operator.engine.claims.status import summary

_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class NewSize:
    """The amounts to ask for; None: as before.

    Attributes:
        memory: The memory of each device, as a quantity.
        memory_percent: The memory as a percentage of each device's.
        cores: Percent of each device's compute.
    """

    memory: str | None = None
    memory_percent: int | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class Resized:
    """The result.

    Attributes:
        text: A sentence about it.
        is_in_force: True if the new amounts apply, or will as soon as the claim gets devices.
    """

    text: str
    is_in_force: bool


async def resize(
    api: Api,
    subject: str,
    namespace: str,
    size: NewSize,
    *,
    container: str | None,
    wait_s: float,
    clock: Clock,
) -> Resized:
    """Change a claim's request, and wait for what becomes of it.

    Args:
        api: Reads and changes the claim.
        subject: `pod/NAME`, `claim/NAME`, or a name, which is looked up as a pod first.
        namespace: The namespace of the pod or the claim.
        size: The amounts to ask for.
        container: The container whose request to change; None: the only one.
        wait_s: Seconds to wait for the result.
        clock: Waits.

    Raises:
        CannotAnswer: There is no such claim or request.
        ClientError: The API server is unreachable, or refuses the change.
    """
    claim = await claim_of(api, subject, namespace)
    index = _chosen(claim, container)
    request = claim.spec.requests[index]
    operations = _operations(index, request, size)
    name = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    if not operations:
        return Resized(f"{name}: {summary(claim.spec)}, unchanged", is_in_force=True)
    raw = await api.json_patch(
        VGPU_CLAIMS, claim.metadata.name, operations, namespace=claim.metadata.namespace
    )
    changed = VGPUClaim.read(raw)
    text = f"{name}: asks {summary(changed.spec)}"
    if changed.status.allocation is None:
        return Resized(f"{text}; it has no devices yet", is_in_force=True)
    waited = 0.0
    while True:
        result = _result(changed)
        if result is not None or waited >= wait_s:
            break
        await clock.sleep(_POLL_S)
        waited += _POLL_S
        changed = await _read_again(api, changed)
    if result is None:
        return Resized(f"{text}; no result after {wait_s:g} s", is_in_force=False)
    return Resized(f"{text}; {result.text}", result.is_in_force)


def _chosen(claim: VGPUClaim, container: str | None) -> int:
    """Return the index of the request to change."""
    names = [request.name for request in claim.spec.requests]
    if container is not None:
        if container not in names and not (len(names) == 1 and not names[0]):
            raise CannotAnswer(
                f"container {container} has no request; these have: {', '.join(names)}"
            )
        return names.index(container) if container in names else 0
    if len(names) > 1:
        raise CannotAnswer(
            f"several containers have requests; use -c with one of {', '.join(names)}"
        )
    return 0


def _operations(index: int, request: VGPURequest, size: NewSize) -> Sequence[Mapping[str, Any]]:
    """Return the JSON patch; empty if the request asks for these amounts already."""
    path = f"/spec/requests/{index}"
    now = {
        "memory": request.memory,
        "memoryPercent": request.memory_percent,
        "cores": request.cores,
    }
    wanted = dict(now)
    if size.memory is not None:
        wanted |= {"memory": size.memory, "memoryPercent": None}
    if size.memory_percent is not None:
        wanted |= {"memory": None, "memoryPercent": size.memory_percent}
    if size.cores is not None:
        wanted["cores"] = size.cores
    changes = [
        {"op": "remove", "path": f"{path}/{field}"}
        if value is None
        else {"op": "add", "path": f"{path}/{field}", "value": value}
        for field, value in wanted.items()
        if value != now[field]
    ]
    # A request without a name is the only one, so there is none to mistake it for.
    if changes and request.name:
        changes.insert(0, {"op": "test", "path": f"{path}/name", "value": request.name})
    return changes


def _result(claim: VGPUClaim) -> Resized | None:
    """Return the result for this version of the spec, or None if there is none yet."""
    found = find(claim.status.conditions, conditions.RESIZED)
    if found is None or found.observed_generation != claim.metadata.generation:
        return None
    if found.status == "True":
        return Resized("in force", is_in_force=True)
    return Resized(f"not in force: {found.reason}: {found.message}", is_in_force=False)


async def _read_again(api: Api, claim: VGPUClaim) -> VGPUClaim:
    name, namespace = claim.metadata.name, claim.metadata.namespace
    try:
        return VGPUClaim.read(await api.get(VGPU_CLAIMS, name, namespace=namespace))
    except NotFound:
        raise CannotAnswer(f"claim {namespace}/{name} was deleted") from None
