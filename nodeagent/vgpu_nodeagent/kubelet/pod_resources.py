"""A client of the kubelet's PodResources service, which lists the pods that hold slots.

The service is rate-limited for the whole node, so callers share requests. Only one is in flight,
and a caller that arrives meanwhile gets the response to the next one, because the request in flight
may have been answered before the caller's pod was known.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import grpc

from vgpu_client.clock import Clock
from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.kubelet.api import podresources_pb2 as pr
from vgpu_nodeagent.kubelet.api import podresources_pb2_grpc as pr_grpc

_TIMEOUT_S = 5.0
_ATTEMPTS = 4
_FIRST_RETRY_S = 0.1
_OPTIONS = (
    # Go's gRPC server refuses a socket path as authority.
    ("grpc.default_authority", "localhost"),
    # A node with many pods exceeds gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", 16 << 20),
)


@dataclass(frozen=True, slots=True)
class ContainerSlots:
    """The slots of our resource that the kubelet lists under one container.

    `cpus` are the exclusive CPUs of the container; only the static CPU manager assigns any.
    """

    namespace: str
    pod: str
    container: str
    slot_ids: frozenset[str]
    cpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PodListing:
    """One response: every active pod by (namespace, name), and the containers with our slots.

    Ordinary init containers are never listed: the kubelet shows their slots under the container of
    the pod that takes them over, or not at all.
    """

    pods: frozenset[tuple[str, str]]
    containers: tuple[ContainerSlots, ...]

    def holders(self, slot_ids: frozenset[str]) -> tuple[ContainerSlots, ...]:
        """Return the containers that hold any of these slots."""
        return tuple(c for c in self.containers if c.slot_ids & slot_ids)


class PodResources:
    """A client of the kubelet's PodResources service.

    Args:
        socket: The kubelet's socket.
        resource: The resource name of our slots.
        clock: Waits between attempts.
    """

    def __init__(
        self,
        socket: Path,
        *,
        resource: str,
        clock: Clock | None = None,
    ) -> None:
        self._target = f"unix://{socket}"
        self._resource = resource
        self._clock = clock or Clock()
        self._running: asyncio.Task[PodListing] | None = None
        self._next: asyncio.Task[PodListing] | None = None

    async def list(self) -> PodListing:
        """Return a listing that was requested after this call.

        Raises:
            KubeletUnavailable: The kubelet does not respond, or keeps refusing.
        """
        if self._next is not None:  # this call waits for its turn and is not sent yet
            requested = self._next
        elif self._running is None or self._running.done():
            requested = self._running = asyncio.ensure_future(self._query())
        else:
            requested = self._next = asyncio.ensure_future(self._query_after(self._running))
        return await asyncio.shield(requested)  # other callers may wait for the same request

    async def allocatable(self) -> frozenset[str]:
        """Return the healthy devices of our resource that the kubelet has, in use or not.

        Raises:
            KubeletUnavailable: The kubelet does not respond.
        """
        try:
            async with grpc.aio.insecure_channel(self._target, options=_OPTIONS) as channel:
                stub = pr_grpc.PodResourcesListerStub(channel)
                answer = await stub.GetAllocatableResources(
                    pr.AllocatableResourcesRequest(), timeout=_TIMEOUT_S
                )
        except grpc.aio.AioRpcError as error:
            raise KubeletUnavailable(
                f"PodResources: {error.code().name}: {error.details()}"
            ) from error
        return frozenset(
            device
            for devices in answer.devices
            if devices.resource_name == self._resource
            for device in devices.device_ids
        )

    async def _query_after(self, previous: asyncio.Task[PodListing]) -> PodListing:
        await asyncio.wait({previous})
        self._running, self._next = self._next, None
        return await self._query()

    async def _query(self) -> PodListing:
        wait_s = _FIRST_RETRY_S
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._call()
            except grpc.aio.AioRpcError as error:
                if attempt == _ATTEMPTS:
                    raise KubeletUnavailable(
                        f"PodResources: {error.code().name}: {error.details()}"
                    ) from error
            await self._clock.sleep(wait_s)
            wait_s *= 2
        raise AssertionError("unreachable")

    async def _call(self) -> PodListing:
        async with grpc.aio.insecure_channel(self._target, options=_OPTIONS) as channel:
            stub = pr_grpc.PodResourcesListerStub(channel)
            answer = await stub.List(pr.ListPodResourcesRequest(), timeout=_TIMEOUT_S)
        return _listing(answer, self._resource)


def _listing(answer: pr.ListPodResourcesResponse, resource: str) -> PodListing:
    containers = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            # The kubelet makes one entry per device, not per container.
            ids = frozenset(
                slot
                for devices in container.devices
                if devices.resource_name == resource
                for slot in devices.device_ids
            )
            if ids:
                cpus = frozenset(container.cpu_ids)
                containers.append(
                    ContainerSlots(pod.namespace, pod.name, container.name, ids, cpus)
                )
    pods = frozenset((pod.namespace, pod.name) for pod in answer.pod_resources)
    return PodListing(pods, tuple(containers))
