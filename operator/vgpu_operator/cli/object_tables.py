"""The tables of slices, pods, devices and nodes.

The models that they read take longer to load than all else that a command such as `version` needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from pydantic import ValidationError

from vgpu_api import conditions
from vgpu_api.conditions import find
from vgpu_api.quantity import format_mib
from vgpu_api.v1alpha1 import Amount, GPUDevice, VGPUClaim
from vgpu_client.transport import Object
from vgpu_operator.cli.listing import GetQuery
from vgpu_operator.cli.printing import Cell, Portion, Table, words
from vgpu_operator.insight.ages import age
from vgpu_operator.insight.states import node_state, state_of

_NOTHING = Amount()


def table(
    query: GetQuery, objects: Iterable[Object], devices: Iterable[Object], now: datetime
) -> Table:
    """Return the table of a kind.

    Args:
        query: The kind, the namespaces and the format.
        objects: The objects to show, in order.
        devices: All devices, for the rows of nodes.
        now: The current time, for ages.
    """
    wide = query.output == "wide"
    if query.kind in ("slices", "pods"):
        shown = _slices(objects, now, wide=wide, namespaces=query.namespace is None)
        return _by_pod(shown) if query.kind == "pods" else shown
    if query.kind == "devices":
        return _devices([GPUDevice.model_validate(obj) for obj in objects], now, wide=wide)
    of_node: dict[str, list[GPUDevice]] = {}
    for raw in devices:
        device = GPUDevice.model_validate(raw)
        of_node.setdefault(device.spec.node_name, []).append(device)
    return _nodes(objects, of_node, now, wide=wide)


def _slices(objects: Iterable[Object], now: datetime, *, wide: bool, namespaces: bool) -> Table:
    header = ["NAME", "STATE", "REQUEST", "NODE", "POD", "REASON", "AGE"]
    table = Table(
        [
            *(["NAMESPACE"] if namespaces else []),
            *header,
            *(["DEVICES", "MESSAGE"] if wide else []),
        ],
        dispensable=("AGE", "POD", "REQUEST", "NODE"),
    )
    for raw in objects:
        metadata = raw["metadata"]
        first = [metadata.get("namespace", "")] if namespaces else []
        try:
            claim = VGPUClaim.read(raw)
        except ValidationError:
            rest: list[Cell] = ["Unreadable", "", "", "", "", age(metadata, now)]
            table.rows.append([*first, metadata["name"], *rest, *(["", ""] if wide else [])])
            continue
        status = claim.status
        allocated = find(status.conditions, conditions.ALLOCATED)
        violated = find(status.conditions, conditions.VIOLATED)
        said = violated if violated is not None and violated.status == "True" else allocated
        row: list[Cell] = [
            *first,
            claim.metadata.name,
            claim.shown_state,
            status.summary,
            status.allocation.node_name if status.allocation else "",
            claim.shown_pod,
            said.reason if said else "",
            age(metadata, now),
        ]
        if wide:
            row += [status.cards, said.message if said else ""]
        table.rows.append(row)
    return table


def _by_pod(slices: Table) -> Table:
    """Return the table of slices with the pod in front, and the claim's name last."""
    header = [name for name in slices.header if name not in ("NAME", "POD")]
    first = ["NAMESPACE", "POD"] if "NAMESPACE" in header else ["POD"]
    order = [*first, *(name for name in header if name != "NAMESPACE"), "NAME"]
    chosen = [list(slices.header).index(name) for name in order]
    names = ["NAME" if name == "POD" else "CLAIM" if name == "NAME" else name for name in order]
    rows: list[Sequence[Cell]] = [[row[number] for number in chosen] for row in slices.rows]
    return Table(names, rows, dispensable=("CLAIM", "AGE", "REQUEST", "NODE"))


def _devices(devices: Iterable[GPUDevice], now: datetime, *, wide: bool) -> Table:
    header = ["NAME", "NODE", "INDEX", "MODEL", "MEMORY", "CORES", "SLOTS", "STATE", "AGE"]
    table = Table(
        [*header, *(["MODE", "NUMA", "DRIVER", "SLICES"] if wide else [])],
        dispensable=("AGE", "MODEL", "INDEX", "SLOTS", "CORES", "NODE"),
    )
    for device in sorted(devices, key=lambda d: (d.spec.node_name, d.status.index or 0)):
        status = device.status
        created = {"creationTimestamp": device.metadata.creation_timestamp}
        row: list[Cell] = [
            device.metadata.name,
            device.spec.node_name,
            "" if status.index is None else str(status.index),
            status.model,
            *shares(status.allocated or _NOTHING, status.allocatable or _NOTHING),
            state_of(device),
            age(created, now),
        ]
        if wide:
            in_mig_mode = status.mig is not None and status.mig.enabled
            row += [
                "MIG" if in_mig_mode else device.spec.mode,
                "" if status.numa_node is None else str(status.numa_node),
                status.driver_version,
                words(f"{claim.namespace}/{claim.name}" for claim in status.claims),
            ]
        table.rows.append(row)
    return table


def _nodes(
    objects: Iterable[Object],
    devices: Mapping[str, Sequence[GPUDevice]],
    now: datetime,
    *,
    wide: bool,
) -> Table:
    header = ["NAME", "DEVICES", "MEMORY", "CORES", "SLOTS", "SLICES", "STATE", "AGE"]
    table = Table(
        [*header, *(["MODELS", "DRIVER"] if wide else [])],
        dispensable=("AGE", "SLOTS", "SLICES", "DEVICES"),
    )
    for raw in sorted(objects, key=lambda obj: str(obj["metadata"]["name"])):
        name = raw["metadata"]["name"]
        mine = devices.get(name, ())
        held = _sum(device.status.allocated for device in mine)
        given = _sum(device.status.allocatable for device in mine)
        claims = {(claim.namespace, claim.name) for d in mine for claim in d.status.claims}
        row: list[Cell] = [
            name,
            str(len(mine)),
            *shares(held, given),
            str(len(claims)),
            node_state(raw, mine),
            age(raw["metadata"], now),
        ]
        if wide:
            row += [
                words(sorted({device.status.model for device in mine if device.status.model})),
                words(sorted({d.status.driver_version for d in mine if d.status.driver_version})),
            ]
        table.rows.append(row)
    return table


def shares(held: Amount, given: Amount) -> list[Cell]:
    """Return a cell each for memory, cores and slots: allocated/allocatable."""
    return [
        Portion(
            f"{held.memory}/{given.memory}",
            _part(held.memory_mib, given.memory_mib),
        ),
        Portion(f"{held.cores}/{given.cores}%", _part(held.cores, given.cores)),
        Portion(f"{held.slots}/{given.slots}", _part(held.slots, given.slots)),
    ]


def _sum(amounts: Iterable[Amount | None]) -> Amount:
    known = [amount for amount in amounts if amount is not None]
    return Amount(
        memory=format_mib(sum(amount.memory_mib for amount in known)),
        cores=sum(amount.cores for amount in known),
        slots=sum(amount.slots for amount in known),
    )


def _part(held: int, given: int) -> float | None:
    return held / given if given else None


def pod_of(obj: Object) -> str:
    """Return the name of a claim's pod; empty if it has none or the claim cannot be read."""
    try:
        return VGPUClaim.read(obj).shown_pod
    except ValidationError:
        return ""
