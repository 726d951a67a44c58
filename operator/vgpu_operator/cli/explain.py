"""`kubectl vgpu explain POD|CLAIM`: explain why it is pending, or why it was placed where it is.

The cluster is read once into an engine state, from which `insight.explanation` derives the answer.
Nothing is written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime

from vgpu_api.quantity import format_mib
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden
from vgpu_operator.cli.installed import installation
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.printing import Cell, Portion, Printer, Table, words
from vgpu_operator.cli.read_cluster import read_evictable, read_resource_claims, read_volumes
from vgpu_operator.cli.subjects import subject_of
from vgpu_operator.engine.apply import apply
from vgpu_operator.engine.informers import current_events
from vgpu_operator.engine.scheduling.gate import is_on
from vgpu_operator.engine.state import State
from vgpu_operator.insight.explanation import Explanation, ask_nodes, from_status
from vgpu_operator.insight.live_cluster import Unread
from vgpu_operator.insight.node_verdicts import DeviceVerdict, NodeVerdict, every_namespace
from vgpu_operator.ledger import Ledger


async def explain(api: Api, subject: str, namespace: str, *, now: datetime) -> Explanation:
    """Read the cluster and explain a pod or a claim.

    Args:
        api: Reads the cluster.
        subject: `pod/NAME`, `claim/NAME`, or a name, which is looked up as a pod first.
        namespace: The namespace of the pod or the claim.
        now: The current time, for durations.

    Raises:
        CannotAnswer: The pod or claim does not exist, or the pod requests no GPU.
        ClientError: The API server is unreachable, or the pod or claim may not be read.
    """
    pod, claim = await subject_of(api, subject, namespace)
    said = from_status(claim, None if pod is None else f"pod {namespace}/{pod.name}", now)
    installed = await installation(api)
    config = installed.config
    if installed.unknown and pod is not None and pod.mode:
        # The configuration may not be read here, but what admission wrote proves the mode.
        scheduling = config.scheduling.model_copy(update={"mode": pod.mode})
        config = config.model_copy(update={"scheduling": scheduling})
    state = State(config, Ledger(config=config), lambda: str(uuid.uuid4()))
    state.unix = now.timestamp()
    unread = Unread(config=installed.unknown)
    try:
        for event in await current_events(api):
            apply(event, state)
    except Forbidden as error:
        said.not_shown = f"nodes are not shown: {error.message}"
        return said
    found = None if pod is None else state.cache.pod(pod.uid)
    if pod is not None and found is None and claim is None:
        raise CannotAnswer(f"pod {namespace}/{pod.name} asks for no GPU")
    if config.scheduling.mode == "Claims":
        await read_resource_claims(api, state)
        found = None if pod is None else state.cache.pod(pod.uid)
    if found is not None and is_on(state) and found.is_gated and found.host_demand.volumes:
        unread = replace(unread, volumes=await read_volumes(api, state))
    if not said.node:
        await read_evictable(api, state)
    ask_nodes(state, found, claim, said, every_namespace, unread)
    return said


# Printing.


def show(said: Explanation, printer: Printer, output: str) -> None:
    """Print an explanation as `text`, as `wide` text with all columns, or as `json`."""
    if output == "json":
        printer.out.write(json.dumps(asdict(said), indent=2) + "\n")
        return
    kind, _, name = said.subject.partition(" ")
    facts = [
        (kind.capitalize(), name),
        ("Claim", said.claim if kind == "pod" else ""),
        ("Request", said.asks),
        ("State", said.state + (f" for {said.since}" if said.since else "")),
        ("Reason", ": ".join(filter(None, (said.reason, said.message)))),
        ("Now", said.now if said.now != said.message else ""),
        ("Node", said.node),
        *(("Device", device) for device in said.devices),
    ]
    for label, text in facts:
        if text:
            printer.paragraph(f"{label}: {text}")
    for text in _sentences(said):
        printer.paragraph(text)
    if said.nodes:
        _show_nodes(said, printer, is_whole=output == "wide")


def _sentences(said: Explanation) -> Iterator[str]:
    """Yield the sentences about the whole: the way out first, then the checks that were skipped."""
    if said.way_out:
        yield said.way_out[0].upper() + said.way_out[1:]
    if said.group is not None:
        yield said.group.message
    if said.preemption is not None:
        yield said.preemption.message
    yield from filter(None, (said.not_shown, said.not_judged))


def _show_nodes(said: Explanation, printer: Printer, *, is_whole: bool) -> None:
    """Print a line for each node that matters, a line for each sort of the others, and devices."""
    printer.line()
    devices = _devices()
    for node in said.nodes:
        ends = "" if node.serves or not node.end_first else _after(node.end_first)
        printer.paragraph(f"{node.name}: {node.verdict}{ends}")
        devices.rows += [_row(node, device) for device in node.devices]
    for each in said.alike:
        more = ", …" if each.count > len(each.first) else ""
        nodes = f"{each.count:,} more node{'s' if each.count > 1 else ''}"
        printer.paragraph(f"{nodes}: {each.verdict} ({', '.join(each.first)}{more})")
    printer.line()
    printer.table(devices, is_whole=is_whole)


def _after(ends: Sequence[str]) -> str:
    return f"; would serve after the end of {', '.join(ends)}"


def _devices() -> Table:
    return Table(
        ["DEVICE", "NODE", "SCORE", "FREE MEMORY", "FREE CORES", "FREE SLOTS", "HELD BY"],
        dispensable=("SCORE", "FREE SLOTS", "HELD BY", "FREE CORES", "NODE"),
    )


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
