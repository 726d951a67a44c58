"""The verdict on each node for a claim: reasons, devices, and claims that would have to end."""

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
from vgpu_operator.placement.usage_scores import device_score, node_score

MOST_NODES = 20
"""The largest number of nodes that are shown, best first."""

Reads: TypeAlias = Callable[[str], bool]
"""Returns True if claims of a namespace may be named; other claims are only counted."""


def every_namespace(_: str) -> bool:
    """Let the claims of every namespace be named."""
    return True


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """A device on a checked node.

    Attributes:
        score: The score that the device policy compares; it depends on the policy whether the
            highest or the lowest score wins.
        free_memory_mib: The memory that no other claim holds, in MiB.
        held_by: The other claims on the device, with their amounts.
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
    """A checked node.

    Attributes:
        score: The score that the node policy compares: 0 (empty) to 30 (full), without the claim.
        verdict: `holds it`, `would serve`, the number of devices that earmarks keep, or the reasons
            of the refusal.
        serves: True if the claim is on the node or could be placed there.
        end_first: The claims that would have to end to make room; None if that would not help or is
            not necessary.
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
    """Return verdicts on the best `MOST_NODES` nodes, as if the claim had no devices.

    Args:
        state: The engine's state; it is not modified.
        key: The key of the claim, which may not exist.
        kind: The class of requests that the claim belongs to.
        chosen: The claim's node, which is listed first; empty: none.
        reads: Returns True if a namespace's claims may be named.
    """
    names = state.ledger.nodes()
    with state.ledger.without(key):
        refused = _refusals(state, names, kind)
        # The claim's own node comes first, then nodes that could serve, then those that refuse.
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
    # Each request of a claim has its own scores; show those of the first.
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
    """Add the smallest set of claims that would have to end before the node could serve.

    kube-scheduler finds preemption victims the same way: it removes all of them, then puts each
    back if it still fits, the most important and oldest first.
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
    """Return a sort key that puts the highest pod priority first, then the oldest claim."""
    priority = max((pod.priority for pod in state.cache.pods_of(key)), default=0)
    claim = state.cache.claim(key)
    created = "" if claim is None else claim.metadata.creation_timestamp or ""
    return -priority, created, key
