"""The cluster as shown on the page: the engine's state, kept up to date by the same informers.

A standby of the operator has the same state. The page has its own process, so that visitors never
slow down the engine, and explanations use the functions that make real decisions. The row of a node
or claim is computed when the object changes, so serving a page of 5,000 nodes only takes a sort.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from vgpu_api import conditions
from vgpu_api.conditions import find
from vgpu_api.config import ClusterConfig
from vgpu_api.effective import effective_use
from vgpu_api.resources import Resource
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.clock import Clock
from vgpu_operator.engine import events
from vgpu_operator.engine.apply import apply
from vgpu_operator.engine.cache import key_of
from vgpu_operator.engine.claims.status import refused_reason, summary
from vgpu_operator.engine.events import Event
from vgpu_operator.engine.informers import STORAGE
from vgpu_operator.engine.scheduling.gate import is_on
from vgpu_operator.engine.state import State
from vgpu_operator.insight.live_cluster import Unread
from vgpu_operator.insight.states import state_of, worst_state
from vgpu_operator.ledger import ClaimKey, Ledger
from vgpu_operator.web.usage import UNREAD, FleetUsage


@dataclass(frozen=True, slots=True)
class GivenPart:
    """An allocated amount, and the allocatable amount."""

    held: int
    given: int

    def __add__(self, other: GivenPart) -> GivenPart:
        return GivenPart(self.held + other.held, self.given + other.given)


NO_SHARE = GivenPart(0, 0)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """The devices of one model, on one node or on several.

    Attributes:
        devices: The number of devices.
        unused: The number of ready devices that no claim holds.
        memory: The memory of these devices in MiB.
    """

    devices: int
    unused: int
    memory: GivenPart

    def __add__(self, other: ModelRow) -> ModelRow:
        return ModelRow(
            self.devices + other.devices, self.unused + other.unused, self.memory + other.memory
        )


NO_MODEL = ModelRow(0, 0, NO_SHARE)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with devices, and the sums over its devices.

    Attributes:
        state: One word, as `kubectl vgpu get nodes` prints it.
        device_state: The same, derived only from the devices and not from the node's own condition.
        states: The number of devices in each state.
        memory: The memory of all devices, in MiB.
        cores: The compute of all devices, in percent of one device.
        claims: The number of claims that hold devices.
        split_mib: The free memory of partly used devices, in MiB.
        models: The devices of each model.
    """

    name: str
    state: str
    device_state: str
    states: Mapping[str, int]
    memory: GivenPart
    cores: GivenPart
    slots: GivenPart
    claims: int
    split_mib: int
    models: Mapping[str, ModelRow]


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A summary of a claim.

    Attributes:
        state: `Waiting` if the claim was refused, else the state in its status.
        reason: The reason of a refusal or violation.
        since: The time of the refusal or violation, RFC 3339.
        memory_mib: The claim's memory in MiB.
        message: The sentence of the refusal or violation, which the event has, too.
    """

    key: ClaimKey
    state: str
    asks: str
    node: str
    pod: str
    reason: str
    since: str
    memory_mib: int
    cores: int
    message: str = ""


class Mirror:
    """The engine's state, and the rows computed from it.

    Args:
        config: The cluster's configuration.
        clock: The clock of the state.

    Attributes:
        state: The state for explanations and simulations, which leave it unchanged.
        claims: The rows of claims, by key.
        version: A number that grows with each observation.
        unread: The parts that the state lacks; in Gate mode volumes, until all are listed.
        usage: The memory and compute in use.
    """

    def __init__(self, config: ClusterConfig, clock: Clock) -> None:
        self.state = State(config, Ledger(config=config), lambda: str(uuid4()))
        self.claims: dict[ClaimKey, ClaimRow] = {}
        self.version = 0
        self._unlisted = [kind.plural for kind in STORAGE] if is_on(self.state) else []
        self.unread = self._what_lacks()
        self.usage = UNREAD
        self._clock = clock
        self._nodes: dict[str, NodeRow] = {}
        self._stale: set[str] = set()
        self._cursor = 0
        self._changed = asyncio.Event()
        self._looked = asyncio.Event()

    def observe(self, event: Event) -> None:
        """Apply an event of a watch."""
        state = self.state
        state.now, state.unix = self._clock.monotonic(), self._clock.unix()
        self._stale.update(self._nodes_of(event))
        apply(event, state)
        # Discard the effects: a leader would carry them out, but this process never leads.
        state.outbox.clear()
        for due in (state.claims.due, state.pods.due, state.devices, state.registers, state.links):
            due.clear()
        self._take_claim(event)
        self.version += 1
        self._changed.set()

    def note_listed(self, kind: Resource) -> None:
        """Record that a kind has been listed in full."""
        if kind.plural in self._unlisted:
            self._unlisted.remove(kind.plural)
            self.unread = self._what_lacks()
            self.version += 1
            self._changed.set()

    def take_usage(self, usage: FleetUsage) -> None:
        """Show this usage from now on."""
        if usage != self.usage:
            self.usage = usage
            self.version += 1
            self._changed.set()

    def note_look(self) -> None:
        """Record that somebody looks at the page."""
        self._looked.set()

    async def looked(self) -> None:
        """Wait until somebody has looked at the page since the last call."""
        await self._looked.wait()
        self._looked.clear()

    def _what_lacks(self) -> Unread:
        kinds = ", ".join(self._unlisted)
        return Unread(volumes=f"this page has not listed {kinds}" if kinds else "")

    async def changed(self, since: int, *, within_s: float) -> None:
        """Wait until the version exceeds the given one, or until the timeout."""
        try:
            async with asyncio.timeout(within_s):
                while self.version <= since:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass

    def nodes(self) -> Mapping[str, NodeRow]:
        """Return the rows of nodes with devices, by name."""
        ledger = self.state.ledger
        self._cursor, touched = ledger.changed_since(self._cursor)
        for name in self._stale | touched:
            devices = ledger.devices(name)
            if devices:
                self._nodes[name] = self._row(name, devices)
            else:
                self._nodes.pop(name, None)
        self._stale.clear()
        return self._nodes

    def shares(self, device: GPUDevice) -> tuple[GivenPart, GivenPart, GivenPart]:
        """Return a device's slots, compute in percent, and MiB; zeros before it has a status."""
        if not device.status.uuid:
            return NO_SHARE, NO_SHARE, NO_SHARE
        columns = self.state.ledger.columns
        number = columns.number_of(device.metadata.name)
        slots, cores, memory = columns.used(number)
        return (
            GivenPart(slots, columns.slots[number]),
            GivenPart(cores, columns.cores[number]),
            GivenPart(memory, columns.memory[number]),
        )

    def _nodes_of(self, event: Event) -> tuple[str, ...]:
        """Return the nodes whose rows an event may change, except nodes that the ledger reports."""
        match event:
            case events.NodeObserved():
                return (event.node.metadata.name,)
            case events.NodeDeleted() | events.NodeUnreadable():
                return (event.name,)
            case events.DeviceObserved():
                before = self.state.ledger.node_of(event.device.metadata.name)
                return tuple(filter(None, (event.device.spec.node_name, before)))
            case events.DeviceDeleted():
                return tuple(filter(None, (self.state.ledger.node_of(event.name),)))
            case _:
                return ()

    def _take_claim(self, event: Event) -> None:
        match event:
            case events.ClaimObserved():
                key = key_of(event.claim)
            case events.ClaimDeleted():
                key = event.key
            case events.ClaimUnreadable():
                metadata = event.raw["metadata"]
                key = ClaimKey(metadata.get("namespace") or "", metadata["name"])
                self.claims[key] = ClaimRow(key, "Unreadable", "", "", "", "", "", 0, 0)
                return
            case _:
                return
        claim = self.state.cache.claim(key)
        if claim is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = claim_row(claim)

    def _row(self, name: str, devices: Sequence[GPUDevice]) -> NodeRow:
        ledger, node = self.state.ledger, self.state.cache.nodes.get(name)
        states = Counter(state_of(device) for device in devices)
        models: dict[str, ModelRow] = {}
        memory = cores = slots = NO_SHARE
        split = 0
        for device in devices:
            of_slots, of_cores, of_memory = self.shares(device)
            slots, cores, memory = slots + of_slots, cores + of_cores, memory + of_memory
            if 0 < of_memory.held < of_memory.given:
                split += of_memory.given - of_memory.held
            # A device that is not Ready is no spare capacity.
            unused = int(not of_slots.held and state_of(device) == "Ready")
            model = device.status.model or "not described yet"
            models[model] = models.get(model, NO_MODEL) + ModelRow(1, unused, of_memory)
        keys = {holder.key for device in devices for holder in ledger.holders(device.status.uuid)}
        return NodeRow(
            name=name,
            state=worst_state(
                states,
                ready=node is not None and node.is_ready,
                cordoned=node is not None and node.spec.unschedulable,
            ),
            device_state=worst_state(states, ready=True, cordoned=False),
            states=states,
            memory=memory,
            cores=cores,
            slots=slots,
            claims=len(keys),
            split_mib=split,
            models=models,
        )


def claim_row(claim: VGPUClaim) -> ClaimRow:
    """Return the row of a claim."""
    status, refused = claim.status, refused_reason(claim)
    allocated = find(status.conditions, conditions.ALLOCATED)
    violated = find(status.conditions, conditions.VIOLATED)
    is_violated = violated is not None and violated.status == "True"
    shown = violated if is_violated else allocated
    reason = violated.reason if violated is not None and is_violated else refused or ""
    memory = cores = 0
    if status.allocation is not None:
        for use in effective_use(claim.spec, status.allocation.devices).values():
            memory, cores = memory + use.memory_mib, cores + use.cores
    return ClaimRow(
        key=key_of(claim),
        state="Waiting" if refused else claim.shown_state,
        asks=status.summary or summary(claim.spec),
        node=status.allocation.node_name if status.allocation else "",
        pod=claim.shown_pod,
        reason=reason,
        since=(shown.last_transition_time or "" if shown else "")
        or claim.metadata.creation_timestamp
        or "",
        memory_mib=memory,
        cores=cores,
        message=shown.message if shown is not None and reason else "",
    )
