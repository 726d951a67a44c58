"""What each node makes of a claim: whether it would serve it, and the devices it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from vgpu_api.effective import Use
from vgpu_api.quantity import format_mib
from vgpu_api.reasons import Tally
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import refusals_on
from vgpu_operator.placement.score import device_score, node_score

MOST_NODES = 20
"""Shown of a fleet, the best first."""

Reads: TypeAlias = Callable[[str], bool]
"""Whether claims of a namespace are named; those of others are counted."""


def every_namespace(_: str) -> bool:
    """Names all claims."""
    return True


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """A device of a node that was checked.

    Attributes:
        score: What the device's policy compares; a device that serves best has the most or the
            least of it, by policy.
        free_memory_mib: What no claim holds, without what the claim itself holds.
        held_by: The claims that hold it, with their amounts.
    """

    uuid: str
    score: float
    free_memory_mib: int
    memory_mib: int
    free_cores: int
    cores: int
    free_slots: int
    slots: int
    held_by: list[str]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """A node that was checked.

    Attributes:
        score: How full its devices are without the claim, 0 to 30; the node policy compares it.
        verdict: `holds it`, `would serve`, how many of its devices an earmark keeps, or the reasons
            why it does not.
        end_first: Where it does not: the claims whose end would let it serve; None where none of
            them would.
    """

    name: str
    score: float
    verdict: str
    serves: bool
    end_first: list[str] | None
    devices: list[DeviceVerdict]


def verdicts(
    state: State, key: ClaimKey, kind: EquivalenceClass, *, chosen: str = "", reads: Reads
) -> list[NodeVerdict]:
    """What nodes make of a claim, which holds nothing meanwhile: the best, `MOST_NODES` of them.

    Args:
        state: Left as it is.
        key: The claim, which need not exist.
        kind: What it asks for.
        chosen: The node that it has; it comes first.
        reads: Whose claims are named.
    """
    names = state.ledger.nodes()
    with state.ledger.without(key):
        refused = _refusals(state, names, kind)
        best = sorted(names, key=lambda name: (name != chosen, name in refused, name))
        views = [
            _view(state, name, kind, refused.get(name), chosen, reads) for name in best[:MOST_NODES]
        ]
        return [
            view if view.serves else _with_ends(state, view, key, kind, reads) for view in views
        ]


def _refusals(state: State, names: Sequence[str], kind: EquivalenceClass) -> dict[str, Tally]:
    return refusals_on(
        state.ledger.columns,
        kind.request,
        names,
        nodes=state.ledger.filters.of(kind.rules, kind.host_demand),
        budget=state.ledger.budget(kind.namespace, kind.scopes),
    )


def _view(
    state: State,
    name: str,
    kind: EquivalenceClass,
    refused: Tally | None,
    chosen: str,
    reads: Reads,
) -> NodeVerdict:
    columns = state.ledger.columns
    node = columns.node_id(name)
    assert node is not None
    request, devices = kind.request.requests[0], []
    for device in columns.node_devices[node]:
        slots, cores, memory, _ = columns.in_use(device)
        score = device_score(columns, device, request, kind.request.weights)
        devices.append(
            DeviceVerdict(
                uuid=columns.uuid[device],
                score=round(score, 2),
                free_memory_mib=columns.memory[device] - memory,
                memory_mib=columns.memory[device],
                free_cores=columns.cores[device] - cores,
                cores=columns.cores[device],
                free_slots=columns.slots[device] - slots,
                slots=columns.slots[device],
                held_by=list(_holders(state, columns.uuid[device], reads)),
            )
        )
    serves = refused is None
    verdict = "holds it" if name == chosen else "would serve" if serves else str(refused)
    return NodeVerdict(
        name, round(node_score(columns, node), 2), verdict, serves or name == chosen, None, devices
    )


def _holders(state: State, device: str, reads: Reads) -> Iterator[str]:
    others = []
    for holder in state.ledger.holders(device):
        if reads(holder.key.namespace):
            yield f"{holder.key.namespace}/{holder.key.name} ({_amounts(holder.use)})"
        else:
            others.append(holder.use)
    if others:
        yield f"{_of_others(len(others))} ({_amounts(sum(others, Use()))})"


def _amounts(use: Use) -> str:
    return format_mib(use.memory_mib) + (f", {use.cores} %" if use.cores else "")


def _of_others(count: int) -> str:
    return f"{count} claim{'s' if count > 1 else ''} of other namespaces"


def _with_ends(
    state: State, view: NodeVerdict, key: ClaimKey, kind: EquivalenceClass, reads: Reads
) -> NodeVerdict:
    """With the claims whose end would let the node serve: none of them could be left out.

    As kube-scheduler finds the pods to preempt: were all of them gone, and then each is let stay,
    the most important and oldest first, as long as there is room.
    """
    held = {holder.key for d in view.devices for holder in state.ledger.holders(d.uuid)} - {key}
    if not held or not _serves_without(state, view.name, kind, held):
        return view
    ends = set(held)
    for each in sorted(held, key=lambda other: _importance(state, other)):
        if _serves_without(state, view.name, kind, ends - {each}):
            ends.discard(each)
    names = sorted(f"{each.namespace}/{each.name}" for each in ends if reads(each.namespace))
    if len(names) < len(ends):
        names.append(_of_others(len(ends) - len(names)))
    return NodeVerdict(view.name, view.score, view.verdict, view.serves, names, view.devices)


def _serves_without(state: State, node: str, kind: EquivalenceClass, gone: set[ClaimKey]) -> bool:
    with state.ledger.without(*gone):
        return not _refusals(state, (node,), kind)


def _importance(state: State, key: ClaimKey) -> tuple[int, str, ClaimKey]:
    """The most important first: by the priority of the claim's pods, then by age."""
    priority = max((pod.priority for pod in state.cache.pods_of(key)), default=0)
    claim = state.cache.claim(key)
    created = "" if claim is None else claim.metadata.creation_timestamp or ""
    return -priority, created, key
