"""The claims of the examples, in the states that the operator writes, as a client reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.names import API_VERSION
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaim, VGPUClaimStatus
from vgpu_operator.dialects import read
from vgpu_operator.engine.claims.status import DesiredStatus, claim_for_pod, status_with

EXAMPLES = Path(__file__).parents[1] / "examples"
_UUID = "00000000-0000-0000-0000-000000000001"


def example_claims() -> Iterator[VGPUClaim]:
    """Yield every claim in the examples, and the claim that the operator creates for each pod."""
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "VGPUClaim":
                yield _stored(document)
            elif document["kind"] == "Pod":
                pod = Pod.model_validate(document)
                try:
                    demand = read(pod, ClusterConfig())
                except BadInput:
                    continue  # admission refuses it, so it never gets a claim
                if demand is not None and demand.spec is not None:
                    yield _stored(claim_for_pod(pod, demand.spec))


def statuses(claim: VGPUClaim) -> dict[str, DesiredStatus]:
    """Return the statuses that the operator may report for a claim, by a name for the situation."""
    device = AllocatedDevice(request=claim.spec.requests[0].name, uuid="GPU-0", memory="1Gi")
    allocation = Allocation(node_name="node-1", id=_UUID, devices=[device])
    return {
        "waits for its pod": DesiredStatus.waiting(),
        "is a template": DesiredStatus.template(),
        "finds no room": DesiredStatus.refused(
            reason=Reason.CARD_INSUFFICIENT_MEMORY, message="1/1 CardInsufficientMemory"
        ),
        "has devices": DesiredStatus.allocated(allocation, None),
        "was expired": DesiredStatus.expired("train-0"),
        "was released": DesiredStatus.released("its pod has ended"),
        "is being deleted": DesiredStatus.terminating(
            VGPUClaimStatus(allocation=allocation, conditions=[]), "until pod p has ended"
        ),
    }


def with_status(claim: VGPUClaim, desired: DesiredStatus) -> dict[str, Any]:
    """Return the claim as a client reads it."""
    status = status_with(claim, claim.spec, desired, unix=0.0)
    return claim.model_copy(update={"status": status}).to_wire()


def _stored(document: dict[str, Any]) -> VGPUClaim:
    metadata = {**document["metadata"], "generation": 1, "uid": "u", "resourceVersion": "1"}
    return VGPUClaim.read({**document, "apiVersion": API_VERSION, "metadata": metadata})
