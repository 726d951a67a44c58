"""The verdict on each node for a claim: reasons, devices, and claims that would have to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from vgpu_api.effective import Use
from vgpu_api.quantity import format_mib
from vgpu_api.reasons import Tally
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.placement import Columns, refusals_on
from vgpu_operator.placement.usage_scores import device_score, node_score

MOST_NODES = 20
"""The largest number of nodes that are shown, best first."""
MOST_ALIKE = 3
"""The largest number of nodes shown of one verdict, where the end of claims would not help."""
_NAMED = 3
"""The number of names given of nodes that are only counted."""
_EXAMINED = 32
"""The number of nodes for which the claims are sought that would have to end."""
_TRIED = 4
"""The number of smaller amounts of memory that are tried."""
_SERVES = "would serve"

Reads: TypeAlias = Callable[[str], bool]
"""Returns True if claims of a namespace may be named; other claims are only counted."""


def every_namespace(_: str) -> bool:
    """Return True: the claims of every namespace may be named."""
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
        verdict: `holds it`, `would be chosen`, `would serve`, the number of devices that earmarks
            keep, or the reasons of the refusal.
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


@dataclass(frozen=True, slots=True)
class EqualVerdicts:
    """Nodes with the same verdict, on which the end of claims would not help.

    Attributes:
        first: The names of the first of them.
    """

    verdict: str
    count: int
    first: list[str]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts on all nodes.

    Attributes:
        nodes: The most helpful nodes: the chosen one, those that serve, those that would serve
            after the fewest claims end, and a few of each other verdict.
        alike: The other nodes, by verdict, the most frequent first.
        way_out: How a request that no node serves would be served; empty if it is served, or if
            nothing is known that would help.
    """

    nodes: list[NodeVerdict]
    alike: list[EqualVerdicts]
    way_out: str

    @property
    def hidden(self) -> int:
        """Return the number of nodes that are not listed by themselves."""
        return sum(each.count for each in self.alike)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The claim to explain, the state, and the namespaces whose claims may be named."""

    state: State
    key: ClaimKey
    kind: EquivalenceClass
    reads: Reads


def verdicts(
    state: State,
    key: ClaimKey,
    kind: EquivalenceClass,
    *,
    chosen: str = "",
    planned: str = "",
    reads: Reads,
) -> Verdicts:
    """Return the verdicts on nodes, the most helpful first, as if the claim had no devices.

    Args:
        state: The engine's state; it is not modified.
        key: The key of the claim, which may not exist.
        kind: The class of requests that the claim belongs to.
        chosen: The claim's node, which is listed first; empty: none.
        planned: The node that the claim would get; empty: none, or unknown.
        reads: Returns True if a namespace's claims may be named.
    """
    names, asked = state.ledger.nodes(), _Asked(state, key, kind, reads)
    with state.ledger.without(key):
        refused = _refusals(state, names, kind)
        first = [name for name in (chosen or planned,) if name in names]
        serving = sorted(set(names) - refused.keys() - set(first))
        others = [name for name in names if name in refused and name not in first]
        serving = [*first, *serving]
        helped, rest = _by_ends(asked, others, refused)
        verdict_of = {name: str(refused[name]) for name in rest}
        room = MOST_NODES - len(serving) - len(helped)
        few, alike = _grouped(verdict_of, serving[MOST_NODES:], room)
        best, worst = (
            [_view(asked, name, refused.get(name), chosen, planned) for name in some]
            for some in (serving[:MOST_NODES], few)
        )
        way_out = "" if serving else _way_out(state, kind, names, helped)
    return Verdicts([*best, *helped, *worst], alike, way_out)


def _grouped(
    verdict_of: Mapping[str, str], serving: Sequence[str], room: int
) -> tuple[list[str], list[EqualVerdicts]]:
    """Return a few names of each verdict to list by themselves, and the groups of all others.

    Args:
        verdict_of: The verdicts on the nodes that nothing helps, by name.
        serving: Further nodes that serve, which are not listed by themselves.
        room: How many may be listed by themselves.
    """
    few: list[str] = []
    listed: Counter[str] = Counter()
    groups: dict[str, list[str]] = {_SERVES: list(serving)} if serving else {}
    for name, verdict in verdict_of.items():
        if listed[verdict] < MOST_ALIKE and len(few) < room:
            listed[verdict] += 1
            few.append(name)
        else:
            groups.setdefault(verdict, []).append(name)
    return few, [
        EqualVerdicts(verdict, len(names), names[:_NAMED])
        for verdict, names in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]


def _by_ends(
    asked: _Asked, names: Sequence[str], refused: Mapping[str, Tally]
) -> tuple[list[NodeVerdict], list[str]]:
    """Return the nodes that would serve once claims end, the cheapest first, and all others.

    Only the nodes with the fewest claims are examined, since each takes a decision per claim.
    """
    columns = asked.state.ledger.columns

    def claims_on(name: str) -> tuple[int, str]:
        node = columns.node_id(name)
        assert node is not None
        return columns.node_slots_used[node], name

    ordered = sorted(names, key=claims_on)
    held = [name for name in ordered if claims_on(name)[0]][:_EXAMINED]
    views = [_with_ends(asked, _view(asked, name, refused[name], "", "")) for name in held]
    helped = [view for view in views if view.end_first is not None]
    helped.sort(key=lambda view: (len(view.end_first or ()), claims_on(view.name)))
    shown = {view.name for view in helped[:MOST_NODES]}
    return helped[:MOST_NODES], sorted(name for name in names if name not in shown)


def _way_out(
    state: State, kind: EquivalenceClass, names: Sequence[str], helped: Sequence[NodeVerdict]
) -> str:
    """Return how the request would be served, in one sentence; empty if nothing is known."""
    ways = []
    most = _most_memory(state, kind, names)
    if most:
        ways.append(f"if you ask for at most {most:,} MiB per GPU")
    ends = next((view.end_first for view in helped if view.end_first), None)
    if ends:
        are_many = len(ends) > 1 or " " in ends[0]
        ways.append(f"when {' and '.join(ends)} {'end' if are_many else 'ends'}")
    return f"fits {', or '.join(ways)}" if ways else ""


def _most_memory(state: State, kind: EquivalenceClass, names: Sequence[str]) -> int:
    """Return the most memory with which the request, unchanged otherwise, is served now; or 0.

    Tried are the largest amounts that devices have free, less than what is asked.
    """
    if len(kind.request.requests) != 1 or kind.request.requests[0].mode == "MIG":
        return 0
    request, free = kind.request.requests[0], _free_memory(state.ledger.columns, names)
    asked, every = request.memory_mib, set().union(*free.values())
    amounts = sorted(each for each in every if each > 0 and (asked is None or each < asked))
    for memory_mib in reversed(amounts[-_TRIED:]):
        smaller = replace(request, memory_mib=memory_mib, memory_percent=None)
        demand = replace(kind.request, requests=(smaller,))
        roomy = [name for name in names if max(free[name]) >= memory_mib]
        if len(_refusals(state, roomy, kind._replace(request=demand))) < len(roomy):
            return memory_mib
    return 0


def _free_memory(columns: Columns, names: Sequence[str]) -> Mapping[str, Collection[int]]:
    """Return the amounts, in MiB, that the devices of each node have free; 0 of no device."""
    found: dict[str, Collection[int]] = {}
    for name in names:
        node = columns.node_id(name)
        assert node is not None
        devices = columns.node_devices[node]
        found[name] = {0, *(columns.memory[at] - columns.in_use(at)[2] for at in devices)}
    return found


def _refusals(state: State, names: Sequence[str], kind: EquivalenceClass) -> dict[str, Tally]:
    return refusals_on(
        state.ledger.columns,
        kind.request,
        names,
        nodes=state.ledger.filters.of(kind.rules, kind.host_demand),
        budget=state.ledger.budget(kind.namespace, kind.scopes),
    )


def _view(
    asked: _Asked, name: str, refused: Tally | None, chosen: str, planned: str
) -> NodeVerdict:
    state, kind = asked.state, asked.kind
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
                held_by=list(_holders(state, columns.uuid[device], asked.reads)),
            )
        )
    serves = refused is None
    verdict = _SERVES if serves else str(refused)
    if name == chosen:
        verdict = "holds it"
    elif serves and name == planned:
        verdict = "would be chosen"
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


def _with_ends(asked: _Asked, view: NodeVerdict) -> NodeVerdict:
    """Add the smallest set of claims that would have to end before the node could serve.

    kube-scheduler finds preemption victims the same way: it removes all of them, then puts each
    back if it still fits, the most important and oldest first.
    """
    state, key, kind, reads = asked.state, asked.key, asked.kind, asked.reads
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
