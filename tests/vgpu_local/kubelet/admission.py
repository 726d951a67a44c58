"""Admits pods to a node: chooses devices and calls Allocate, one pod at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from vgpu_local.kubelet.checkpoint import write_checkpoint
from vgpu_local.kubelet.holdings import AdmissionError, Holding, Holdings, pick
from vgpu_local.kubelet.plugins import PluginError, PluginRegistry
from vgpu_local.kubelet.podspec import Container, Pod


class Admission:
    """The admission of a node, which gives a pod's containers their devices or refuses the pod.

    A resource that no plugin ever registered is skipped and not refused, as in the kubelet, which
    does not check extended resources that its node lacks. That is why a scheduler must never be
    told to ignore the resource.
    """

    def __init__(
        self,
        registry: PluginRegistry,
        holdings: Holdings,
        *,
        checkpoint: Path,
        active: Callable[[], Collection[str]],
        order: random.Random,
    ) -> None:
        """Create the admission of a node.

        Args:
            registry: The node's plugins.
            holdings: The devices of each container, which only this class changes.
            checkpoint: The file to which each allocation is written before anything starts.
            active: Returns the UIDs of the pods that still count.
            order: Chooses among free devices.
        """
        self._registry = registry
        self._holdings = holdings
        self._checkpoint = checkpoint
        self._active = active
        self._order = order
        self._one_at_a_time = asyncio.Lock()

    async def admit(self, pod: Pod) -> None:
        """Allocate for every container of a pod, init containers first.

        Raises:
            AdmissionError: The pod must fail. It keeps the devices of its earlier containers until
                the next pod is admitted, as on a real node.
        """
        async with self._one_at_a_time:
            self._holdings.keep_only(self._active())
            reusable: dict[str, set[str]] = {}
            for container in pod.all_containers:
                for resource, needed in container.devices:
                    if resource in self._registry.resources and needed > 0:
                        again = reusable.setdefault(resource, set())
                        ids = await self._allocate(pod, container, resource, needed, again)
                        if container in pod.init_containers and not container.restartable:
                            again.update(ids)
                        else:
                            again.difference_update(ids)

    def devices_of(self, pod_uid: str) -> Mapping[str, Mapping[str, Mapping[str, bool]]]:
        """Return the pod's devices by container and resource, with True for each healthy one.

        The health is the one that the plugin sent last (`UpdateAllocatedResourcesStatus`). It does
        not change if the plugin disconnects, and a device that is no longer listed is healthy.
        """
        found: dict[str, dict[str, dict[str, bool]]] = {}
        for holding in self._holdings:
            if holding.pod_uid == pod_uid:
                known = self._registry.get_or_add(holding.resource).devices
                found.setdefault(holding.container, {})[holding.resource] = {
                    device: device not in known or known[device].healthy
                    for device in holding.device_ids
                }
        return found

    def save(self) -> None:
        """Write the checkpoint."""
        registered = {name: r.healthy for name, r in self._registry.resources.items()}
        write_checkpoint(self._checkpoint, self._holdings, registered)

    async def _allocate(
        self, pod: Pod, container: Container, name: str, needed: int, reusable: set[str]
    ) -> tuple[str, ...]:
        resource = self._registry.resources[name]
        try:
            ids = pick(
                resource=name,
                needed=needed,
                healthy=resource.healthy,
                in_use=self._holdings.in_use(name),
                reusable=reusable,
                order=self._order,
            )
            numa = tuple(resource.devices[i].numa for i in ids)
            response = await self._registry.allocate(resource, ids)
        except (AdmissionError, PluginError) as error:
            raise AdmissionError(f"Allocate failed due to {error}, which is unexpected") from error
        self._holdings.add(Holding(pod.uid, container.name, name, ids, numa, response))
        self.save()
        return ids
