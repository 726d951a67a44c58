"""The kubelet's PodResources service, which lists the devices of each container."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import grpc

from vgpu_local.kubelet.holdings import Holding, Holdings
from vgpu_local.kubelet.plugins import Resource
from vgpu_local.kubelet.podspec import Container, Pod
from vgpu_nodeagent.kubelet.api import podresources_pb2 as pr
from vgpu_nodeagent.kubelet.api import podresources_pb2_grpc as pr_grpc


class PodResources(pr_grpc.PodResourcesListerServicer):
    """The PodResources service, with answers from the kubelet's bookkeeping.

    Like the real one it lists only active pods, no ordinary init containers, sidecars first, and
    one entry for each device. A request also makes the kubelet forget the devices of ended pods.
    """

    def __init__(
        self,
        holdings: Holdings,
        active_pods: Callable[[], Iterable[Pod]],
        resources: Mapping[str, Resource],
    ) -> None:
        """Create the service for the holdings of the pods that `active_pods` returns."""
        self._resources = resources
        self._holdings = holdings
        self._active_pods = active_pods

    async def List(  # noqa: N802
        self, request: pr.ListPodResourcesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pr.ListPodResourcesResponse:
        """List every active pod, those without devices too."""
        pods = list(self._active_pods())
        self._holdings.keep_only({pod.uid for pod in pods})
        return pr.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])

    async def GetAllocatableResources(  # noqa: N802
        self,
        request: pr.AllocatableResourcesRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> pr.AllocatableResourcesResponse:
        """List every healthy device, in use or not."""
        return pr.AllocatableResourcesResponse(
            devices=[
                pr.ContainerDevices(resource_name=resource.name, device_ids=[device])
                for resource in self._resources.values()
                for device in sorted(resource.healthy)
            ]
        )

    async def Get(  # noqa: N802
        self, request: pr.GetPodResourcesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pr.GetPodResourcesResponse:
        """Describe one pod by its name."""
        for pod in self._active_pods():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pr.GetPodResourcesResponse(pod_resources=self._pod(pod))
        await context.abort(
            grpc.StatusCode.UNKNOWN,
            f"pod {request.pod_name} in namespace {request.pod_namespace} not found",
        )

    def _pod(self, pod: Pod) -> pr.PodResources:
        listed: list[Container] = [c for c in pod.init_containers if c.restartable]
        listed.extend(pod.containers)
        return pr.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pr.ContainerResources(
                    name=container.name,
                    devices=[
                        entry
                        for holding in self._holdings.of_container(pod.uid, container.name)
                        for entry in _devices(holding)
                    ],
                )
                for container in listed
            ],
        )


def _devices(holding: Holding) -> list[pr.ContainerDevices]:
    return [
        pr.ContainerDevices(
            resource_name=holding.resource,
            device_ids=[device],
            topology=pr.NUMATopology(nodes=[pr.NUMANode(ID=n) for n in nodes]) if nodes else None,
        )
        for device, nodes in zip(holding.device_ids, holding.numa, strict=True)
    ]
