"""`kubectl vgpu explain POD|CLAIM`: why it waits, or why it is where it is.

The operator's own text is in the claim's condition. What they were made from is found out anew:
the cluster is read once into the engine's state, and the functions that decide in earnest are asked
what they make of each node. Nothing is written. What only the operator remembers is not there:
reservations of pods that are being bound are not seen, and devices that an earmark keeps are taken
from the operator's text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

from pydantic import ValidationError

from vgpu_api import conditions
from vgpu_api.conditions import find
from vgpu_api.core import Pod
from vgpu_api.effective import Use
from vgpu_api.names import ANNOTATION_CLAIM, SCHEDULING_GATE, pod_claim_name
from vgpu_api.quantity import format_mib
from vgpu_api.reasons import Reason, Tally
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden, NotFound
from vgpu_operator.cli.installed import installation
from vgpu_operator.cli.judge import EVERYTHING_READ, Unread, known_part, not_judged
from vgpu_operator.cli.listing import CannotAnswer, lasting, listed
from vgpu_operator.cli.live_cluster import read_volumes
from vgpu_operator.cli.printing import Cell, Portion, Printer, Table, words
from vgpu_operator.demand import Demand
from vgpu_operator.engine.apply import apply
from vgpu_operator.engine.claims.describe import refusal_of_kind
from vgpu_operator.engine.claims.status import summary
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.informers import current_events
from vgpu_operator.engine.scheduling.earmarks import HELD
from vgpu_operator.engine.scheduling.gate import is_on, refusal_before_nodes, refusal_behind_gate
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.schedule_one import refusal_of, spec_for
from vgpu_operator.engine.state import State
from vgpu_operator.ledger import ClaimKey, Ledger
from vgpu_operator.node_filter import NodeRules
from vgpu_operator.placement import refusals_on
from vgpu_operator.placement.score import device_score, node_score

MOST_NODES = 20
"""Shown of a fleet, the best first."""
_PLACES = {"pod": PODS, "pods": PODS, "claim": VGPU_CLAIMS, "slice": VGPU_CLAIMS,
           "vgpuclaim": VGPU_CLAIMS, "vgc": VGPU_CLAIMS}  # fmt: skip
_HELD = re.compile(rf"(\d+) on (\S+) {HELD}")

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


@dataclass(slots=True)
class Explanation:
    """All that is known of one request.

    Attributes:
        subject: `pod NAMESPACE/NAME` or `claim NAMESPACE/NAME`.
        claim: NAMESPACE/NAME; the claim need not exist yet.
        asks: The request in short.
        state: The claim's.
        reason: The condition's.
        message: The condition's: the operator's last report.
        now: Why no node serves it as things are; empty where one does.
        node: Which node it has; empty: none.
        devices: What it has there.
        nodes: Each node that was checked.
        nodes_hidden: So many more were not shown.
        not_shown: Why nodes are not explained.
        not_judged: What of the pod was left out, and why.
    """

    subject: str
    claim: str
    asks: str = ""
    state: str = "Pending"
    reason: str = ""
    message: str = ""
    since: str = ""
    now: str = ""
    node: str = ""
    devices: list[str] = field(default_factory=list)
    nodes: list[NodeVerdict] = field(default_factory=list)
    nodes_hidden: int = 0
    not_shown: str = ""
    not_judged: str = ""


async def explain(api: Api, subject: str, namespace: str, *, now: datetime) -> Explanation:
    """Find out all of it.

    Args:
        api: Where.
        subject: A name, or `pod/NAME` or `claim/NAME`; a bare name is a pod's before a claim's.
        namespace: Of pod and claim.
        now: For how long something has been so.

    Raises:
        CannotAnswer: There is no such pod or claim, or the pod asks for no GPU.
        ClientError: The API server is away, or refuses the pod or the claim.
    """
    pod, claim = await _subject(api, subject, namespace)
    said = _begun(claim, None if pod is None else f"pod {namespace}/{pod.name}", now)
    installed = await installation(api)
    config = installed.config
    if installed.unknown and pod is not None and pod.is_gated:
        scheduling = config.scheduling.model_copy(update={"mode": "Gate"})  # or it had no gate
        config = config.model_copy(update={"scheduling": scheduling})
    state = State(config, Ledger(config=config), lambda: str(uuid.uuid4()))
    unread = Unread(config=installed.unknown)
    try:
        for event in await current_events(api):
            apply(event, state)
    except Forbidden as error:
        said.not_shown = f"what nodes have is not shown: {error.message}"
        return said
    found = None if pod is None else state.cache.pod(pod.uid)
    if pod is not None and found is None and claim is None:
        raise CannotAnswer(f"pod {namespace}/{pod.name} asks for no GPU")
    if found is not None and is_on(state) and found.is_gated and found.host_demand.volumes:
        unread = replace(unread, volumes=await read_volumes(api, state))
    _find_out(state, found, claim, said, every_namespace, unread)
    return said


def explained(
    state: State,
    claim: VGPUClaim,
    *,
    now: datetime,
    reads: Reads = every_namespace,
    unread: Unread = EVERYTHING_READ,
) -> Explanation:
    """As `explain`, of a claim in a state that is kept up to date.

    Args:
        state: Left as it is.
        claim: One of its claims.
        now: For how long something has been so.
        reads: Whose claims are named.
        unread: What the state lacks.
    """
    pods = state.cache.pods_of(_key(claim))
    pod = pods[0] if pods else None
    said = _begun(claim, None, now)
    _find_out(state, pod, claim, said, reads, unread)
    return said


def _begun(claim: VGPUClaim | None, subject: str | None, now: datetime) -> Explanation:
    """What the claim's status has, if there is one."""
    name = "" if claim is None else "{0.namespace}/{0.name}".format(_key(claim))
    said = Explanation(subject or f"claim {name}", name)
    if claim is not None:
        _repeat(claim, said, now)
    return said


@dataclass(frozen=True, slots=True)
class _NamedPod:
    name: str
    uid: str
    is_gated: bool


async def _subject(
    api: Api, subject: str, namespace: str
) -> tuple[_NamedPod | None, VGPUClaim | None]:
    """The pod, if it is one, and its claim, if that exists."""
    prefix, _, name = subject.rpartition("/")
    if prefix and prefix.lower() not in _PLACES:
        raise CannotAnswer(f"{subject}: give a name, pod/NAME or claim/NAME")
    desired = _PLACES.get(prefix.lower())
    if desired is not VGPU_CLAIMS:
        try:
            raw = await api.get(PODS, name, namespace=namespace)
        except NotFound:
            if desired is PODS:
                raise CannotAnswer(f"no pod {name} in namespace {namespace}") from None
        else:
            pod = Pod.model_validate(raw)
            gates = [gate.get("name") for gate in pod.spec.scheduling_gates]
            found = _NamedPod(name, pod.metadata.uid, SCHEDULING_GATE in gates)
            return found, await _claim_of(api, pod)
    claim = await _claim(api, name, namespace)
    if claim is None:
        what = "claim" if desired is VGPU_CLAIMS else "pod and no claim"
        raise CannotAnswer(f"no {what} {name} in namespace {namespace}")
    return None, claim


async def _claim(api: Api, name: str, namespace: str) -> VGPUClaim | None:
    try:
        return VGPUClaim.read(await api.get(VGPU_CLAIMS, name, namespace=namespace))
    except NotFound:
        return None
    except ValidationError as error:
        raise CannotAnswer(f"claim {namespace}/{name} cannot be read: {error}") from error


async def _claim_of(api: Api, pod: Pod) -> VGPUClaim | None:
    """The claim that serves a pod, or that it names."""
    namespace = pod.metadata.namespace or ""
    claims = (await listed(api, VGPU_CLAIMS, namespace=namespace)).items
    for raw in claims:
        if ((raw.get("status") or {}).get("reservedFor") or {}).get("podUID") == pod.metadata.uid:
            return VGPUClaim.read(raw)
    own = pod_claim_name(pod.metadata.name, pod.metadata.uid)
    named = pod.metadata.annotations.get(ANNOTATION_CLAIM, own)
    return next((VGPUClaim.read(raw) for raw in claims if raw["metadata"]["name"] == named), None)


def _repeat(claim: VGPUClaim, said: Explanation, now: datetime) -> None:
    """From the claim's status."""
    status = claim.status
    said.asks = status.summary or summary(claim.spec)
    said.state = status.state or "Pending"
    condition = find(status.conditions, conditions.ALLOCATED)
    if condition is not None:
        said.reason, said.message = condition.reason, condition.message
        since = condition.last_transition_time
        if since:
            said.since = lasting((now - datetime.fromisoformat(since)).total_seconds())
    if status.allocation is not None:
        said.node = status.allocation.node_name
        said.devices = [
            f"{device.uuid}: {device.memory}"
            + (f", {device.cores} %" if device.cores else "")
            + (f" for {device.request}" if device.request else "")
            for device in status.allocation.devices
        ]


def _find_out(
    state: State,
    pod: GPUPod | None,
    claim: VGPUClaim | None,
    said: Explanation,
    reads: Reads,
    unread: Unread,
) -> None:
    """What the nodes make of it."""
    gated = pod if pod is not None and pod.is_gated else None
    scopes = None if pod is None else pod.scopes
    said.not_judged = not_judged(state.config, gated, unread)
    pod = pod if gated is None else known_part(gated, unread)
    spec = claim.spec if pod is None and claim is not None else None
    if pod is not None:
        found = spec_for(state, pod)
        if isinstance(found, Refusal):
            said.now = found.message
            return
        spec = found
        said.claim = said.claim or f"{pod.claim.namespace}/{pod.claim.name}"
    assert spec is not None
    said.asks = said.asks or summary(spec)
    key = pod.claim if pod is not None else _key(claim)
    refused = None if pod is None else _refused_first(state, pod, claim, said)
    if refused is not None:
        said.now = refused.message
        said.reason = said.reason or str(refused.reason)
        if refused.reason is not Reason.RESERVED_ELSEWHERE:
            return
        pod = gated = None  # the claim has its devices, or waits for them, whatever its pod asks
    request = Demand.of(spec, state.config) if pod is None else pod.request(spec, state.config)
    rules = NodeRules() if pod is None else pod.rules
    host_demand = None if pod is None or gated is None else pod.host_demand
    kind = EquivalenceClass(request, rules, key.namespace, host_demand=host_demand, scopes=scopes)
    refusal = None if said.node or refused is not None else refusal_of_kind(key, kind, state)
    if refusal is not None:
        said.now = refusal.message
        said.reason = said.reason or str(refusal.reason)
    nodes = verdicts(state, key, kind, chosen=said.node, reads=reads)
    held = {} if said.node else held_devices(said.message)
    said.nodes = [_without_held(node, held.get(node.name, 0)) for node in nodes]
    said.nodes_hidden = len(state.ledger.nodes()) - len(said.nodes)


def _refused_first(
    state: State, pod: GPUPod, claim: VGPUClaim | None, said: Explanation
) -> Refusal | None:
    """Why a pod goes nowhere, whatever devices there are."""
    if said.node:
        return refusal_before_nodes(state, pod, claim) if pod.is_gated else None
    if pod.is_gated:
        return refusal_behind_gate(state, pod, claim)
    return None if claim is None else refusal_of(state, claim, pod)


def held_devices(message: str) -> dict[str, int]:
    """How many devices of each node an earmark keeps, by a refusal's text."""
    return {node: int(count) for count, node in _HELD.findall(message)}


def _without_held(node: NodeVerdict, held: int) -> NodeVerdict:
    """What is free there, but kept for a request that has waited longer, serves no other."""
    if not held or not node.serves:
        return node
    devices = f"{held} device{'s' if held > 1 else ''}"
    return replace(node, verdict=f"{devices} {HELD}", serves=False)


def _key(claim: VGPUClaim | None) -> ClaimKey:
    assert claim is not None
    return ClaimKey(claim.metadata.namespace or "", claim.metadata.name)


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
        nodes=state.ledger.nodes_for(kind.rules, kind.host_demand),
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


# In words.


def show(said: Explanation, printer: Printer, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        printer.out.write(json.dumps(asdict(said), indent=2) + "\n")
        return
    kind, _, name = said.subject.partition(" ")
    facts = [
        (kind.capitalize(), name),
        ("Claim", said.claim if kind == "pod" else ""),
        ("Asks", said.asks),
        ("State", said.state + (f" for {said.since}" if said.since else "")),
        ("Why", ": ".join(filter(None, (said.reason, said.message)))),
        ("Now", said.now if said.now != said.message else ""),
        ("Node", said.node),
        *(("Device", device) for device in said.devices),
    ]
    for label, text in facts:
        if text:
            printer.line(f"{label}: {text}")
    for text in filter(None, (said.not_shown, said.not_judged)):
        printer.line(text)
    if not said.nodes:
        return
    printer.line()
    nodes, devices = Table(["NODE", "SCORE", "VERDICT", "WOULD SERVE AFTER THE END OF"]), _devices()
    for node in said.nodes:
        ends = "" if node.serves else words(node.end_first or ())
        nodes.rows.append([node.name, f"{node.score:.2f}", node.verdict, ends])
        devices.rows += [_row(node, device) for device in node.devices]
    printer.table(nodes)
    printer.line()
    printer.table(devices)
    if said.nodes_hidden:
        printer.line(f"and {said.nodes_hidden} more nodes")


def _devices() -> Table:
    return Table(["DEVICE", "NODE", "SCORE", "FREE MEMORY", "FREE CORES", "FREE SLOTS", "HELD BY"])


def _row(node: NodeVerdict, device: DeviceVerdict) -> list[Cell]:
    memory = f"{format_mib(device.free_memory_mib)}/{format_mib(device.memory_mib)}"
    cores = f"{device.free_cores}/{device.cores}%"
    return [
        device.uuid,
        node.name,
        f"{device.score:.2f}",
        Portion(memory, 1 - device.free_memory_mib / max(device.memory_mib, 1)),
        Portion(cores, 1 - device.free_cores / max(device.cores, 1)),
        f"{device.free_slots}/{device.slots}",
        words(device.held_by),
    ]
