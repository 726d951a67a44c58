"""ResourceClaims on a node of hand-made records, and a kubelet that calls over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import grpc

from agent_bench import GPU_0, Bench, a_bench
from builders import a_claim, a_container, a_pod, a_request, an_allocated_device, an_allocation
from vgpu_api.core.pod import MadeResourceClaim, Pod, PodResourceClaim, UsedClaim
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.discovery.health import Health
from vgpu_nodeagent.draplugin.plugin import DRAPlugin
from vgpu_nodeagent.draplugin.preparation import Preparation
from vgpu_nodeagent.draplugin.registration import PluginRegistration, PluginSockets
from vgpu_nodeagent.enforcement.page import PageContent
from vgpu_nodeagent.kubelet.api import dra_pb2 as dra
from vgpu_nodeagent.kubelet.api import dra_pb2_grpc as dra_grpc
from vgpu_nodeagent.kubelet.api import pluginregistration_pb2 as reg
from vgpu_nodeagent.kubelet.api import pluginregistration_pb2_grpc as reg_grpc
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.node_devices import NodeDevices
from vgpu_nodeagent.reporting.reports import Reports

RESOURCE_CLAIM = "vgpu-0123456789ab"
RESOURCE_CLAIM_UID = "5f0c1f9e-0000-4000-8000-000000000001"
ENTRY = "vgpu"
GO = (("grpc.default_authority", "localhost"),)


@dataclass(slots=True)
class DraNode:
    """A node whose agent serves ResourceClaims, and the kubelet's record of them.

    Attributes:
        bench: The records of the node, and what was reported.
        preparation: Prepares and unprepares.
        plugin: Answers the kubelet.
        devices: The devices whose health it shows.
        sockets: Where it is served.
        remembered: The kubelet's record of ResourceClaims.
    """

    bench: Bench
    preparation: Preparation
    plugin: DRAPlugin
    devices: NodeDevices
    sockets: PluginSockets
    remembered: Path
    registration: PluginRegistration = field(init=False)

    def __post_init__(self) -> None:
        self.registration = PluginRegistration(self.plugin, self.sockets)

    @property
    def specs(self) -> Path:
        return self.bench.kubelet.path.parent / "cdi"

    def comes(self, pod: Pod, *claims: VGPUClaim) -> None:
        """Show a pod and claims in the agent's watch and reads."""
        self.bench.view.pods.added(pod)
        for claim in claims:
            self.bench.view.claims.added(claim)

    def goes(self, pod: Pod) -> None:
        """Show that a pod is gone, as after a forced deletion."""
        place = ObjectIdentity("default", pod.metadata.name, pod.metadata.uid)
        self.bench.view.pods.deleted(place)

    def pages(self) -> Mapping[str, PageContent]:
        """Return the pages of the shares, by container."""
        state = self.bench.node.checkpoint.state
        return {
            each.container: self.bench.node.allocations.content(each.name)
            for each in state.slot_allocations.values()
        }

    def remembers(self, *uids: str) -> None:
        """Write the kubelet's record, in which these claims are."""
        self.remembered.write_text("".join(f'{{\\"ClaimUID\\":\\"{uid}\\"}}' for uid in uids))

    @asynccontextmanager
    async def served(self) -> AsyncIterator[PlayedKubelet]:
        """Serve the plugin on its sockets, and return a kubelet with which it is registered."""
        await self.registration.start()
        try:
            async with PlayedKubelet.of(self.sockets.registration) as kubelet:
                yield kubelet
        finally:
            await self.registration.stop()


class PlayedKubelet:
    """Calls a DRA plugin as a kubelet does."""

    def __init__(self, info: Any, channel: grpc.aio.Channel) -> None:
        self.info = info
        self._stub = dra_grpc.DRAPluginStub(cast("grpc.Channel", channel))

    @classmethod
    @asynccontextmanager
    async def of(cls, registration: Path) -> AsyncIterator[PlayedKubelet]:
        """Ask the plugin who it is, and dial the socket that it names."""
        async with grpc.aio.insecure_channel(f"unix://{registration}", options=GO) as channel:
            stub = reg_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(reg.InfoRequest())
            await stub.NotifyRegistrationStatus(reg.RegistrationStatus(plugin_registered=True))
        async with grpc.aio.insecure_channel(f"unix://{info.endpoint}", options=GO) as channel:
            yield cls(info, channel)

    async def prepare(
        self, name: str = RESOURCE_CLAIM, uid: str = RESOURCE_CLAIM_UID, *, within_s: float = 45
    ) -> dra.NodePrepareResourceResponse:
        claims = [dra.Claim(namespace="default", uid=uid, name=name)]
        request = dra.NodePrepareResourcesRequest(claims=claims)
        answer = await self._stub.NodePrepareResources(request, timeout=within_s)
        return answer.claims[uid]

    async def unprepare(self, name: str = RESOURCE_CLAIM, uid: str = RESOURCE_CLAIM_UID) -> str:
        """Return the error; empty if the claim is unprepared."""
        claims = [dra.Claim(namespace="default", uid=uid, name=name)]
        request = dra.NodeUnprepareResourcesRequest(claims=claims)
        answer = await self._stub.NodeUnprepareResources(request, timeout=45)
        return answer.claims[uid].error


@contextmanager
def a_short_folder() -> Iterator[Path]:
    """A folder whose sockets have paths that are short enough for the kernel."""
    with TemporaryDirectory(prefix="dra") as folder:
        yield Path(folder)


async def a_dra_node(
    folder: Path, *, instance: str = "pod-uid", patience_s: float = 0.0
) -> DraNode:
    """Return a node with one 16 GiB device and nothing prepared."""
    bench = await a_bench(folder)
    remembered = folder / "dra_manager_state"
    bench.node = replace(
        bench.node, kubelet=replace(bench.node.kubelet, resource_claims=remembered)
    )
    return serving(bench, folder, instance=instance, patience_s=patience_s)


def serving(bench: Bench, folder: Path, *, instance: str, patience_s: float = 0.0) -> DraNode:
    """Return the node as an agent serves it that has loaded its record."""
    said = cast("Reports", bench.said)
    releases = type(bench.releases)(bench.node, reports=said, bound=bench, clock=bench.clock)
    bench.releases = releases
    preparation = Preparation(
        bench.node,
        reports=said,
        waiting=WaitingPods(bench.view, said),
        releases=releases,
        patience_s=patience_s,
        clock=bench.clock,
    )
    devices = NodeDevices(bench.node.inventory, Health())
    plugin = DRAPlugin("n1", preparation, devices=devices, metrics=Metrics(), turn_s=0.2)
    plugin.serve()
    bench.events.observers = [releases, preparation, plugin]
    sockets = PluginSockets(folder / "plugins", folder / "registry", instance)
    return DraNode(bench, preparation, plugin, devices, sockets, folder / "dra_manager_state")


def a_claiming_pod(
    name: str = "pod-1",
    *,
    containers: Mapping[str, str | None] = {"main": "main"},
    init: Mapping[str, str | None] = {},
    claim: str = RESOURCE_CLAIM,
    template: bool = False,
) -> Pod:
    """Return a bound pod whose containers use these requests of its ResourceClaim.

    Args:
        name: The pod's name.
        containers: The request of each container; None for one that does not use the claim.
        init: The same for ordinary init containers.
        claim: The ResourceClaim.
        template: True if Kubernetes made the claim from a template.
    """
    pod = a_pod(
        name,
        node="n1",
        containers=[a_container(each) for each in containers],
        init_containers=[a_container(each) for each in init],
    )
    spec = pod.spec.model_copy(
        update={
            "containers": [_using(c, containers[c.name]) for c in pod.spec.containers],
            "init_containers": [_using(c, init[c.name]) for c in pod.spec.init_containers],
            "resource_claims": [
                PodResourceClaim(name=ENTRY, resource_claim_name="" if template else claim)
            ],
        }
    )
    made = [MadeResourceClaim(name=ENTRY, resource_claim_name=claim)] if template else []
    status = pod.status.model_copy(update={"resource_claim_statuses": made})
    return pod.model_copy(update={"spec": spec, "status": status})


def _using(container: Any, request: str | None) -> Any:
    uses = [] if request is None else [UsedClaim(name=ENTRY, request=request)]
    resources = container.resources.model_copy(update={"claims": uses})
    return container.model_copy(update={"resources": resources})


def a_given_claim(
    pod: Pod,
    *,
    memory_mib: int = 1024,
    requests: Mapping[str, int] | None = None,
    phases: Mapping[str, str] = {},
    name: str = "c",
    number: int = 0,
    resource_claim_uid: str = RESOURCE_CLAIM_UID,
    reserved_for: str = "",
) -> VGPUClaim:
    """Return the VGPUClaim that the operator made for a pod, as it is after the allocation.

    Args:
        pod: The pod.
        memory_mib: The memory of the container `main`.
        requests: The memory of each container instead, in MiB.
        phases: The phase of a container that is not App.
        name: The name of the claim.
        number: The number of its allocation.
        resource_claim_uid: The ResourceClaim that it names.
        reserved_for: The UID of another pod.
    """
    amounts = requests or {"main": memory_mib}
    devices = [
        an_allocated_device(request=each, uuid=GPU_0, memory_mib=mib)
        for each, mib in amounts.items()
    ]
    allocation = an_allocation(*devices, node="n1", number=number)
    status = VGPUClaimStatus(
        allocation=allocation.model_copy(update={"resource_claim_uid": resource_claim_uid}),
        reserved_for=ReservedFor(
            pod_name=pod.metadata.name, pod_uid=reserved_for or pod.metadata.uid
        ),
        conditions=[],
    )
    asked = [a_request(name=each, phase=phases.get(each, "App")) for each in amounts]
    return a_claim(name, uid=f"uid-of-{name}", requests=asked, status=status)
