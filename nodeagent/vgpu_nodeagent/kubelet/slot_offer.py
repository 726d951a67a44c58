"""Decides which slots the kubelet sees, and which of them it may allocate.

The offer follows from the devices and is separate from the slot allocations (`state/`): a slot
allocation never depends on what is offered after it was made.

How the kubelet treats the offer (pkg/kubelet/cm/devicemanager at v1.36.3):

* kube-scheduler counts the healthy slots less those of all pods on the node as free, so a slot in
  use that turns unhealthy would hide a free one. Another slot is offered in its place.
* A slot in use that is unhealthy is `Unhealthy` in the pod's `allocatedResourcesStatus`. Its
  container keeps running and may restart. Only a pod that the kubelet admits again while its
  container does not run, as after a reboot, fails with `UnexpectedAdmissionError`: for a pod whose
  GPU is lost that is right, because its controller creates another one elsewhere.
* A kubelet that has lost its record would allocate slots in use again, so these are unhealthy too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vgpu_nodeagent.kubelet.forgotten_slots import ForgottenSlots
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.node_devices import NodeDevices
from vgpu_nodeagent.state.slots import SlotRecord, slot_order


def free_slots(*, usable: int, in_use: Collection[str], lost: Collection[str]) -> int:
    """Return how many slots may be allocated: those of usable devices that nothing holds."""
    return max(0, usable - len(set(in_use) - set(lost)))


def offer(
    *,
    total: int,
    usable: int,
    in_use: Collection[str],
    lost: Collection[str] = (),
    forgotten: Collection[str] = (),
) -> list[tuple[str, bool]]:
    """Return the slots to show the kubelet, each with its health.

    Ids belong to no device, so an unusable device removes free slots from the top. A slot in use
    never vanishes.

    Args:
        total: Slots of all known devices.
        usable: Slots of the devices that can take new allocations.
        in_use: Slots with a slot allocation.
        lost: Slots in use whose claim has an unhealthy device.
        forgotten: Slots in use that the kubelet has no record of.
    """
    dead = set(in_use) & {*lost, *forgotten}
    healthy = free_slots(usable=usable, in_use=in_use, lost=lost) + len(dead)
    free = {f"slot-{number}" for number in range(total)} - set(in_use)
    number = total
    while len(free) < healthy:  # every id is in use, and some of them must not be allocated again
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
    """The slots of this node as the kubelet should see them now.

    Args:
        record: The slots in use.
        devices: The devices and their health.
        forgotten: The slots in use that the kubelet has no record of.
        metrics: Counts slots.
    """

    def __init__(
        self, record: SlotRecord, devices: NodeDevices, forgotten: ForgottenSlots, metrics: Metrics
    ) -> None:
        self._record = record
        self._devices = devices
        self._forgotten = forgotten
        self._metrics = metrics

    def slots(self) -> Sequence[tuple[str, bool]]:
        """Return the slots to advertise to the kubelet, each with True if it is healthy."""
        capacities = self._devices.inventory.capacities()
        state = self._record.state
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
        """True if a device is unusable; while the driver does not respond, none is known to be."""
        return self._devices.inventory.driver_error is None and not self._devices.is_usable(uuid)
