"""Hand-made histories for a campaign's judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builders import (
    a_claim,
    a_container,
    a_device,
    a_node,
    a_pod,
    a_pod_group,
    allocation_id,
    an_allocated_device,
    an_allocation,
)
from engine_campaign.judge import QUOTA, Judge, Runs, Write
from engine_campaign.making_way import Eviction, Limits
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.resources import (
    GPU_DEVICES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_QUOTAS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_api.v1alpha1 import AllocatedDevice, ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_api.v1alpha1.base import OwnerReference

LEADER = "operator-1"
FULL = 16_384


class History:
    """Tells a judge what happens; there is a node with GPU-0 and GPU-1, and one with GPU-2."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.judge = Judge(limits or Limits())
        self.version = self.at = 0
        self.wires: dict[tuple[str, str], Mapping[str, Any]] = {}
        for node, uuids in {"node-1": ("GPU-0", "GPU-1"), "node-2": ("GPU-2",)}.items():
            self.write(NODES, a_node(node).to_wire())
            for uuid in uuids:
                self.device(uuid, node)

    @property
    def rules(self) -> list[str]:
        """Return the rules that were broken."""
        return [finding.rule for finding in self.judge.findings]

    def device(self, uuid: str, node: str, **fields: Any) -> None:
        self.write(GPU_DEVICES, a_device(uuid=uuid, node=node, slots=10, **fields).to_wire())

    def write(
        self, resource: Resource, obj: dict[str, Any], *, by: str = "world", type_: str = "MODIFIED"
    ) -> None:
        self.version += 1
        self.at += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.wires[resource.plural, obj["metadata"]["name"]] = obj
        at = float(self.at)
        self.judge.wrote(Write(type_, resource.plural, obj, by, at, sent_at=at))

    def gone(self, resource: Resource, name: str, *, by: str = "world") -> None:
        obj = dict(self.wires[resource.plural, name])
        self.write(resource, obj, by=by, type_="DELETED")

    def pod(
        self,
        name: str,
        *asks: tuple[str, str, int],
        node: str = "",
        by: str = "world",
        owner: str = "",
        spec: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Create a pod.

        Each ask is `init`, `sidecar` or `app`, the container's name, and its MiB.
        """
        init, app = [], []
        for kind, container, mib in asks or (("app", "main", 1024),):
            limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
            policy = "Always" if kind == "sidecar" else None
            made = a_container(container, limits=limits, restart_policy=policy)
            (app if kind == "app" else init).append(made)
        owners = [OwnerReference(kind=owner, name="o", uid="u", controller=True)] if owner else []
        pod = a_pod(
            name,
            node=node,
            containers=app or [a_container()],
            init_containers=init,
            owners=owners,
            **fields,
        ).to_wire()
        pod["spec"].update(spec or {})
        self.write(PODS, pod, by=by)

    def runs_alone(self, name: str, mib: int, *, uuid: str = "GPU-0", **fields: Any) -> None:
        """Create a pod that runs with a part of a device; it is allocated when it is bound."""
        node = "node-2" if uuid == "GPU-2" else "node-1"
        self.pod(name, ("app", "main", mib), **fields)
        self.claim(name, part(mib, uuid=uuid), node=node, number=self.version)
        self.pod(name, ("app", "main", mib), node=node, by=LEADER, phase="Running", **fields)

    def group(self, name: str, least: int) -> None:
        """Create a PodGroup."""
        self.write(POD_GROUPS[0], a_pod_group(name, least=least).to_wire())

    def budget(self, app: str, allowed: int) -> None:
        """Set how many pods with a label may be evicted."""
        spec = {"selector": {"matchLabels": {"app": app}}}
        status = {"disruptionsAllowed": allowed}
        metadata = {"name": app, "namespace": "default"}
        self.write(POD_DISRUPTION_BUDGETS, {"metadata": metadata, "spec": spec, "status": status})

    def evicts(self, victim: str, preemptor: str, *, is_forced: bool = False) -> None:
        """Let the leader evict a pod for another one, a second after the last change."""
        self.at += 1
        self.judge.now = float(self.at)
        uids = f"uid-of-{victim}", f"uid-of-{preemptor}"
        self.judge.making_way.evicts(Eviction(LEADER, *uids, float(self.at), is_forced=is_forced))

    def claim(
        self,
        name: str,
        *parts: AllocatedDevice,
        node: str = "node-1",
        number: int = 0,
        by: str = LEADER,
        released: bool = False,
        finalizer: bool = True,
    ) -> VGPUClaim:
        """Return the claim of the pod of the same name, with these parts of devices, or none."""
        allocation = an_allocation(*parts, node=node, number=number) if parts else None
        if allocation is not None:
            allocation = allocation.model_copy(update={"node_uid": f"uid-of-{node}"})
        status = VGPUClaimStatus(
            allocation=allocation,
            reserved_for=ReservedFor(pod_name=name, pod_uid=f"uid-of-{name}") if parts else None,
            conditions=[],
        )
        claim = a_claim(
            name,
            status=status,
            metadata={"finalizers": [FINALIZER_IN_USE] if finalizer else []},
        )
        wire = claim.to_wire()
        if released:
            wire["status"]["released"] = {"allocationID": allocation_id(number)}
        self.write(VGPU_CLAIMS, wire, by=by)
        return claim

    def runs(self, name: str, *parts: AllocatedDevice, number: int = 0) -> None:
        runs = Runs(f"uid-of-{name}", allocation_id(number), parts)
        self.judge.started(f"uid-of-{name}", runs)

    def quota(self, mib: int) -> None:
        obj = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {QUOTA: mib}}}
        self.write(RESOURCE_QUOTAS, obj)

    def knows_quotas(self) -> None:
        """Tell the judge that the leader knows all quotas."""
        self.judge.told(LEADER, RESOURCE_QUOTAS.plural, self.version, -1e12)


def part(
    mib: int = 1024, *, uuid: str = "GPU-0", request: str = "main", cores: int = 0
) -> AllocatedDevice:
    return an_allocated_device(uuid=uuid, request=request, memory_mib=mib, cores=cores)
