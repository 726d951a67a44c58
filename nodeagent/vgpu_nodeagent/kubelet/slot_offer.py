"""Which slots the kubelet is shown, and which of them it may hand out.

Apart from the slot allocations on them (`state/`): what is offered follows from the devices, and a
slot allocation never depends on what is offered after it was made.

What the kubelet makes of it (pkg/kubelet/cm/devicemanager at v1.36.3):

* kube-scheduler takes a node's free slots to be the healthy ones less those of all pods there, so
  a slot in use that turns unhealthy would take away a free one. Another is offered in its place.
* A slot in use that is unhealthy is `Unhealthy` in the pod's `allocatedResourcesStatus`. Its
  container runs on and starts again. Only a pod that the kubelet admits anew while its container
  does not run, as after a reboot, fails with `UnexpectedAdmissionError`: for a pod whose GPU is
  lost that is right, because its controller makes another one elsewhere.
* A kubelet that has lost its record hands out slots in use again. They are unhealthy, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vgpu_nodeagent.kubelet.forgotten_slots import ForgottenSlots
from vgpu_nodeagent.kubelet.local_node import LocalNode
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.node_devices import NodeDevices
from vgpu_nodeagent.state.slots import slot_order


def free_slots(*, usable: int, in_use: Collection[str], lost: Collection[str]) -> int:
    """Return how many slots may be handed out: those of usable devices that nothing holds there."""
    return max(0, usable - len(set(in_use) - set(lost)))


def offer(
    *,
    total: int,
    usable: int,
    in_use: Collection[str],
    lost: Collection[str] = (),
    forgotten: Collection[str] = (),
) -> list[tuple[str, bool]]:
    """The slots to show the kubelet, each with its health.

    Ids stand for no device, so a device that is not usable shrinks the free ones, from the top. One
    in use never vanishes.

    Args:
        total: Slots of all devices known.
        usable: Slots of the devices that can take something new.
        in_use: Slots with a slot allocation.
        lost: Those of them whose claim has a device that cannot be relied on.
        forgotten: Those of them that the kubelet has no record of.
    """
    dead = set(in_use) & {*lost, *forgotten}
    healthy = free_slots(usable=usable, in_use=in_use, lost=lost) + len(dead)
    free = {f"slot-{number}" for number in range(total)} - set(in_use)
    number = total
    while len(free) < healthy:  # every id is in use, and some of those are not to be handed out
        free |= {f"slot-{number}"} - set(in_use)
        number += 1
    shown = []
    for slot in sorted(free | set(in_use), key=slot_order):
        if slot in in_use:
            shown.append((slot, slot not in dead))
            continue
        shown.append((slot, healthy > 0))
        healthy -= 1
    return shown


class SlotOffer:
    """What of this node's slots is shown to the kubelet.

    Args:
        node: The slots in use.
        devices: The devices, and whether they can be relied on.
        forgotten: What the kubelet has no record of.
        metrics: Where slots are counted.
    """

    def __init__(
        self, node: LocalNode, devices: NodeDevices, forgotten: ForgottenSlots, metrics: Metrics
    ) -> None:
        self._node = node
        self._devices = devices
        self._forgotten = forgotten
        self._metrics = metrics

    def slots(self) -> Sequence[tuple[str, bool]]:
        """Return the slots to show now, each with whether it may be handed out."""
        capacities = self._node.inventory.capacities()
        state = self._node.checkpoint.state
        usable = sum(
            device.allocatable.slots
            for uuid, device in capacities.items()
            if self._devices.is_usable(uuid)
        )
        in_use = state.slots_in_use()
        lost = state.slots_on(frozenset(filter(self._is_lost, state.used())))
        self._metrics.slots.labels("used").set(len(in_use))
        self._metrics.slots.labels("free").set(free_slots(usable=usable, in_use=in_use, lost=lost))
        return offer(
            total=sum(device.allocatable.slots for device in capacities.values()),
            usable=usable,
            in_use=in_use,
            lost=lost,
            forgotten=self._forgotten.slots,
        )

    def _is_lost(self, uuid: str) -> bool:
        """Whether a device cannot be relied on; while the driver is away nothing is known."""
        return self._node.inventory.driver_error is None and not self._devices.is_usable(uuid)
