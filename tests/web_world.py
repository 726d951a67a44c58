"""A small cluster as the page sees it, with an API server that reviews visitors' access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from builders import (
    ROOM,
    a_claim,
    a_device,
    a_node,
    a_request,
    an_allocated_device,
    an_allocation,
)
from vgpu_api.conditions import ALLOCATED
from vgpu_api.config import ClusterConfig
from vgpu_api.resources import PRIORITY_CLASSES, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from vgpu_api.v1alpha1 import Condition, ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_client.clock import Clock
from vgpu_client.errors import Unreachable
from vgpu_client.reads import Listing
from vgpu_operator.engine import events
from vgpu_operator.engine.informers import STORAGE
from vgpu_operator.web.mirror import Mirror

SINCE = "2026-01-01T00:00:00Z"


def a_mirror(
    *,
    nodes: int = 2,
    devices: int = 2,
    claims: Iterable[VGPUClaim] = (),
    memory_mib: int = 16_384,
    config: ClusterConfig | None = None,
) -> Mirror:
    """Return nodes `node-0` … with devices `GPU-0-0` …, these claims, and listed volumes."""
    mirror = Mirror(config or ClusterConfig(), Clock())
    for kind in STORAGE:
        mirror.note_listed(kind)
    for number in range(nodes):
        name = f"node-{number}"
        mirror.observe(events.NodeObserved(a_node(name, allocatable=ROOM)))
        for index in range(devices):
            uuid = f"GPU-{number}-{index}"
            device = a_device(uuid=uuid, node=name, index=index, memory_mib=memory_mib)
            mirror.observe(events.DeviceObserved(device))
    for claim in claims:
        mirror.observe(events.ClaimObserved(claim))
    return mirror


def a_holder(
    name: str,
    *,
    namespace: str = "default",
    uuid: str = "GPU-0-0",
    node: str = "node-0",
    memory_mib: int = 4096,
    pod: str = "",
) -> VGPUClaim:
    """Return a claim that holds a part of a device."""
    device = an_allocated_device(uuid=uuid, memory_mib=memory_mib, cores=25)
    return a_claim(
        name,
        namespace=namespace,
        uid=f"uid-of-{namespace}-{name}",
        requests=[a_request(memory=f"{memory_mib}Mi", cores=25)],
        status=VGPUClaimStatus(
            allocation=an_allocation(device, node=node),
            reserved_for=ReservedFor(
                pod_name=pod or f"pod-of-{name}", pod_uid=f"{namespace}-{name}"
            ),
            state="InUse",
            conditions=[
                Condition(type=ALLOCATED, status="True", last_transition_time=SINCE),
            ],
        ),
    )


def a_waiter(
    name: str,
    *,
    namespace: str = "default",
    memory: str = "80Gi",
    reason: str = "CardInsufficientMemory",
    message: str = "0/2 nodes fit",
) -> VGPUClaim:
    """Return a claim that was refused."""
    return a_claim(
        name,
        namespace=namespace,
        uid=f"uid-of-{namespace}-{name}",
        requests=[a_request(memory=memory)],
        status=VGPUClaimStatus(
            state="Pending",
            kept_for_others=[],
            conditions=[
                Condition(
                    type=ALLOCATED,
                    status="False",
                    reason=reason,
                    message=message,
                    last_transition_time=SINCE,
                )
            ],
        ),
    )


@dataclass
class Reviews:
    """An API server that reviews tokens and rights; a token is its user's name.

    Attributes:
        rights: Of each user: the kinds that he lists, as `PLURAL` or `PLURAL in NAMESPACE`.
        asked: What it was asked, in order.
    """

    rights: Mapping[str, set[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    away: bool = False

    async def create(self, resource: Resource, obj: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Answer a review."""
        spec = obj["spec"]
        if self.away:
            raise Unreachable("no answer in time")
        if resource is TOKEN_REVIEWS:
            self.asked.append("token")
            known = spec["token"] in self.rights
            user = {"username": spec["token"], "groups": ["g"]}
            return {"status": {"authenticated": known, "user": user if known else {}}}
        assert resource is SUBJECT_ACCESS_REVIEWS
        wanted = spec["resourceAttributes"]
        assert wanted["verb"] == "list"
        place = f" in {wanted['namespace']}" if wanted["namespace"] else ""
        right = wanted["resource"] + place
        self.asked.append(right)
        rights = self.rights[spec["user"]]
        return {"status": {"allowed": right in rights or wanted["resource"] in rights}}

    async def list(self, resource: Resource, **_: Any) -> Listing:
        """List the PriorityClasses, of which there are none."""
        assert resource is PRIORITY_CLASSES
        return Listing([], "1")


EVERYTHING = {"gpudevices", "nodes", "vgpuclaims"}
