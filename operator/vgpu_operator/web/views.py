"""Computes the documents of the page from the mirror and the visitor's permissions. No I/O.

Claims that a visitor may not read are counted but not named. Each function takes the sight and
filters by it, so that no caller can forget to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_operator.insight.explanation import explained
from vgpu_operator.insight.states import state_of
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web.mirror import (
    NO_MODEL,
    NO_SHARE,
    ClaimRow,
    GivenPart,
    Mirror,
    ModelRow,
    NodeRow,
)
from vgpu_operator.web.sight import Sight, VisitorRefused
from vgpu_operator.web.usage import Used, UsedSum, WantedSeries, sum_of

Document: TypeAlias = dict[str, Any]
T = TypeVar("T")

IDLE_PART = 0.05
"""A claim that has used less of its share for an hour is idle."""
MOST_FOUND = 20
"""The most objects of a kind that a search shows."""
LARGEST_PAGE = 200
_PAGE = 50
_LARGEST_FILTER = 253
_NAMESPACES = 100
"""The number of rows in the table of namespaces, largest first; the rest are summed up."""


@dataclass(frozen=True, slots=True)
class Query:
    """The rows of a table to show and their order.

    Attributes:
        page: The number of the page, from 1.
        size: The number of rows on a page.
        sort: A key of the table's orders; a leading `-` reverses it.
        text: Show rows whose name contains this text; empty: all.
        state: Show rows in this state; empty: all.
        namespace: Show claims in this namespace; empty: all readable ones.
        reason: Show claims that were refused or violated for this reason; empty: all.
    """

    page: int = 1
    size: int = _PAGE
    sort: str = ""
    text: str = ""
    state: str = ""
    namespace: str = ""
    reason: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str], orders: Iterable[str] | None) -> Query:
        """Read the parameters of a URL.

        Args:
            given: The parameters.
            orders: The keys by which the table can be sorted; None: the document takes no
                parameters.

        Raises:
            BadInput: A parameter is unknown or invalid.
        """
        if orders is None:
            for name in given:
                raise BadInput.forbidden(name, "the page has no such parameter")
            return cls()
        for name, value in given.items():
            if name not in ("page", "size", "sort", "text", "state", "namespace", "reason"):
                raise BadInput.forbidden(name, "the page has no such parameter")
            if len(value) > _LARGEST_FILTER:
                raise BadInput.too_many(name, len(value), _LARGEST_FILTER, "characters")
        sort = given.get("sort", "")
        if sort.removeprefix("-") not in ("", *orders):
            raise BadInput.unsupported("sort", sort, orders)
        return cls(
            page=_number(given, "page", 1, 1_000_000),
            size=_number(given, "size", _PAGE, LARGEST_PAGE),
            sort=sort,
            text=given.get("text", ""),
            state=given.get("state", ""),
            namespace=given.get("namespace", ""),
            reason=given.get("reason", ""),
        )


def _number(given: Mapping[str, str], name: str, otherwise: int, most: int) -> int:
    text = given.get(name, "")
    if not text:
        return otherwise
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not 1 <= number <= most:
        raise BadInput(field=name, value=text, expected=f"a number, 1 to {most}")
    return number


# The fleet.


def fleet(mirror: Mirror, sight: Sight) -> Document:
    """Return the totals of the fleet; namespaces that may not be read share one row."""
    rows = list(mirror.nodes().values()) if sight.devices else []
    claims = [claim for claim in mirror.claims.values() if sight.reads(claim.key.namespace)]
    # A visitor who may list devices can count claims there anyway, so count all of them.
    shown = claims if not sight.devices else list(mirror.claims.values())
    waiting = [claim for claim in shown if claim.state == "Waiting"]
    return {
        "usage": _usage(mirror, sight),
        "devices": _fleet_devices(mirror, rows, sight) if sight.devices else None,
        "claims": {
            "total": len(shown),
            "states": _counted(claim.state for claim in shown),
            "waiting": len(waiting),
            "reasons": _counted(claim.reason for claim in waiting),
            "waitingSince": min((claim.since for claim in waiting if claim.since), default=""),
        },
        "idle": _idle_sum(mirror, claims),
        "readsClaims": sight.everywhere or bool(sight.namespaces),
        "namespaces": _namespaces(mirror, claims),
        "others": _sum_of(
            claim for claim in mirror.claims.values() if not sight.reads(claim.key.namespace)
        )
        if sight.devices
        else None,
    }


def _fleet_devices(mirror: Mirror, rows: Sequence[NodeRow], sight: Sight) -> Document:
    states: Counter[str] = Counter()
    models: dict[str, ModelRow] = defaultdict(lambda: NO_MODEL)
    for row in rows:
        states.update(row.states)
        for model, of_model in row.models.items():
            models[model] += of_model
    memory = sum((row.memory for row in rows), NO_SHARE)
    split = sum(row.split_mib for row in rows)
    free = memory.given - memory.held
    return {
        "nodes": len(rows),
        "nodeStates": _counted(_node_state(row, sight) for row in rows),
        "total": sum(states.values()),
        "states": _counted(states.elements()),
        "memory": asdict(memory),
        "cores": asdict(sum((row.cores for row in rows), NO_SHARE)),
        "slots": asdict(sum((row.slots for row in rows), NO_SHARE)),
        "used": _used_sum(replace(_fleet_used(mirror, sight), of=sum(states.values()))),
        "models": [
            {"model": model, **asdict(of_model)} for model, of_model in sorted(models.items())
        ],
        "fragmentation": {
            "freeMiB": free,
            "splitMiB": split,
            "ratio": round(split / free, 4) if free else 0.0,
        },
    }


def _fleet_used(mirror: Mirror, sight: Sight) -> UsedSum:
    """Return the sum of the reported uses; looking one up for each device takes far longer."""
    columns = mirror.state.ledger.columns
    there = (uuid for uuid in mirror.usage.devices if columns.nodes_of((uuid,)))
    return sum_of(used for uuid in there if (used := _used_of(mirror, sight, uuid)))


def _namespaces(mirror: Mirror, claims: Iterable[ClaimRow]) -> Document:
    of: dict[str, list[ClaimRow]] = defaultdict(list)
    for claim in claims:
        of[claim.key.namespace].append(claim)
    rows = [
        {
            "name": name,
            **_sum_of(each),
            "used": _used_sum(
                sum_of(mirror.usage.claims.get(claim.key) for claim in each if claim.node)
            ),
        }
        for name, each in of.items()
    ]
    rows.sort(key=lambda row: (-row["memoryMiB"], -row["claims"], row["name"]))
    return {"items": rows[:_NAMESPACES], "total": len(rows)}


def _sum_of(claims: Iterable[ClaimRow]) -> Document:
    claims = list(claims)
    return {
        "claims": len(claims),
        "waiting": sum(claim.state == "Waiting" for claim in claims),
        "memoryMiB": sum(claim.memory_mib for claim in claims),
        "cores": sum(claim.cores for claim in claims),
    }


def _counted(words: Iterable[str]) -> dict[str, int]:
    """Count the words, sorted by frequency and then by name."""
    return dict(sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0])))


# Nodes.

NODE_ORDERS: Mapping[str, Callable[[NodeRow], Any]] = {
    "name": lambda row: row.name,
    "devices": lambda row: sum(row.states.values()),
    "memory": lambda row: _part(row.memory),
    "cores": lambda row: _part(row.cores),
    "free": lambda row: row.memory.given - row.memory.held,
    "split": lambda row: row.split_mib,
    "claims": lambda row: row.claims,
}


def nodes(mirror: Mirror, sight: Sight, query: Query) -> Document:
    """Return one page of the nodes that have devices.

    Raises:
        VisitorRefused: The visitor may not list devices.
    """
    _must_see_devices(sight)
    every = mirror.nodes().values()
    found = [
        row
        for row in every
        if query.text in row.name and query.state in ("", _node_state(row, sight))
    ]
    rows = _in_order(found, query, NODE_ORDERS, "name", lambda row: row.name)
    return {
        "usage": _usage(mirror, sight),
        "states": _counted(_node_state(row, sight) for row in every),
        **_paged(rows, query, lambda row: _node_row(mirror, row, sight)),
    }


def node(mirror: Mirror, sight: Sight, name: str) -> Document:
    """Return a node and its devices, each with its claims.

    Raises:
        VisitorRefused: The visitor may not list devices, or the node does not exist.
    """
    _must_see_devices(sight)
    row = mirror.nodes().get(name)
    if row is None:
        raise VisitorRefused(404, f"no node {name} with devices")
    devices = sorted(
        _devices(mirror, row),
        key=lambda each: (each.status.index or 0, each.status.uuid),
    )
    return {
        "usage": _usage(mirror, sight),
        **_node_row(mirror, row, sight),
        "items": [_device(mirror, sight, device) for device in devices],
    }


def _node_row(mirror: Mirror, row: NodeRow, sight: Sight) -> Document:
    return {
        "name": row.name,
        "state": _node_state(row, sight),
        "devices": sum(row.states.values()),
        "states": _counted(Counter(row.states).elements()),
        "models": sorted(row.models),
        "memory": asdict(row.memory),
        "cores": asdict(row.cores),
        "slots": asdict(row.slots),
        "claims": row.claims,
        "splitMiB": row.split_mib,
        "used": _used_sum(
            sum_of(_used_of(mirror, sight, each.status.uuid) for each in _devices(mirror, row))
        ),
    }


def _devices(mirror: Mirror, row: NodeRow) -> Sequence[GPUDevice]:
    return mirror.state.ledger.devices(row.name)


def _node_state(row: NodeRow, sight: Sight) -> str:
    return row.state if sight.nodes else row.device_state


def _device(mirror: Mirror, sight: Sight, device: GPUDevice) -> Document:
    slots, cores, memory = mirror.shares(device)
    holders = mirror.state.ledger.holders(device.status.uuid)
    named = [holder for holder in holders if sight.reads(holder.key.namespace)]
    others = [holder.use for holder in holders if not sight.reads(holder.key.namespace)]
    in_mig_mode = device.status.mig is not None and device.status.mig.enabled
    return {
        "name": device.metadata.name,
        "node": device.spec.node_name,
        "uuid": device.status.uuid,
        "index": device.status.index,
        "model": device.status.model,
        "state": state_of(device),
        "mode": "MIG" if in_mig_mode else device.spec.mode,
        "numa": device.status.numa_node,
        "driver": device.status.driver_version,
        "memory": asdict(memory),
        "cores": asdict(cores),
        "slots": asdict(slots),
        "used": _used(_used_of(mirror, sight, device.status.uuid)),
        "holders": [
            {
                "namespace": holder.key.namespace,
                "name": holder.key.name,
                "pod": _pod_of(mirror, holder.key),
                "memoryMiB": holder.use.memory_mib,
                "cores": holder.use.cores,
                "used": _used(mirror.usage.claims.get(holder.key)),
            }
            for holder in named
        ],
        "others": {
            "claims": len(others),
            "memoryMiB": sum(use.memory_mib for use in others),
            "cores": sum(use.cores for use in others),
        },
    }


def _pod_of(mirror: Mirror, key: ClaimKey) -> str:
    row = mirror.claims.get(key)
    return "" if row is None else row.pod


def _must_see_devices(sight: Sight) -> None:
    if not sight.devices:
        raise VisitorRefused(403, f'user "{sight.user}" cannot list gpudevices.vgpu.dev')


# Claims.

CLAIM_ORDERS: Mapping[str, Callable[[ClaimRow], Any]] = {
    "name": lambda row: row.key,
    "state": lambda row: row.state,
    "node": lambda row: row.node,
    "memory": lambda row: row.memory_mib,
    "reason": lambda row: row.reason,
    "since": lambda row: row.since,
}


def claims(mirror: Mirror, sight: Sight, query: Query) -> Document:
    """Return one page of the readable claims, and the number of the others.

    Raises:
        VisitorRefused: The visitor may not list the claims of the named namespace.
    """
    if query.namespace:
        _must_read(sight, query.namespace)
    readable = [row for row in mirror.claims.values() if sight.reads(row.key.namespace)]
    found = [row for row in readable if _is_asked_for(row, query)]
    rows = _in_order(found, query, CLAIM_ORDERS, "name", lambda row: row.key)
    hidden = len(mirror.claims) - len(readable)
    return {
        "usage": _usage(mirror, sight),
        "states": _counted(row.state for row in readable),
        "namespaces": sorted({row.key.namespace for row in readable})[:_NAMESPACES],
        "readsClaims": sight.everywhere or bool(sight.namespaces),
        "held": _held_in(readable, query.namespace) if query.namespace else None,
        "others": hidden if sight.devices else None,
        **_paged(rows, query, lambda row: _claim_row(mirror, row)),
    }


def _held_in(rows: Iterable[ClaimRow], namespace: str) -> Document:
    of = [row for row in rows if row.key.namespace == namespace]
    return {
        "memoryMiB": sum(row.memory_mib for row in of),
        "cores": sum(row.cores for row in of),
    }


def _is_asked_for(row: ClaimRow, query: Query) -> bool:
    return (
        query.namespace in ("", row.key.namespace)
        and query.state in ("", row.state)
        and query.reason in ("", row.reason)
        and (query.text in row.key.name or query.text in row.pod)
    )


def claim(mirror: Mirror, sight: Sight, key: ClaimKey, *, now: datetime) -> Document:
    """Return a claim with its explanation.

    Raises:
        VisitorRefused: The visitor may not list the namespace's claims, or the claim does not
            exist.
    """
    _must_read(sight, key.namespace)
    row, found = mirror.claims.get(key), mirror.state.cache.claim(key)
    if row is None:
        raise VisitorRefused(404, f"no claim {key.name} in namespace {key.namespace}")
    if found is None:
        return {**_claim_row(mirror, row), "why": None, "conditions": []}
    said = explained(mirror.state, found, now=now, reads=sight.reads, unread=mirror.unread)
    why = asdict(said)
    del why["since"]  # the browser computes the duration itself
    if not sight.devices:
        why["nodes"], why["nodes_hidden"], why["alike"], why["way_out"] = [], 0, [], ""
        why["preemption"] = why["group"] = None
        why["not_shown"] = f'nodes: user "{sight.user}" cannot list gpudevices.vgpu.dev'
    return {
        "usage": _usage(mirror, sight),
        **_claim_row(mirror, row),
        "why": why,
        "conditions": [
            {
                "type": each.type,
                "status": each.status,
                "reason": each.reason,
                "message": each.message,
                "since": each.last_transition_time,
            }
            for each in found.status.conditions
        ],
    }


def _claim_row(mirror: Mirror, row: ClaimRow) -> Document:
    return {
        "namespace": row.key.namespace,
        "name": row.key.name,
        "state": row.state,
        "asks": row.asks,
        "node": row.node,
        "pod": row.pod,
        "reason": row.reason,
        "message": row.message,
        "since": row.since,
        "memoryMiB": row.memory_mib,
        "cores": row.cores,
        "used": _used(mirror.usage.claims.get(row.key)),
    }


def _must_read(sight: Sight, namespace: str) -> None:
    if not sight.reads(namespace):
        text = f'user "{sight.user}" cannot list vgpuclaims.vgpu.dev in namespace "{namespace}"'
        raise VisitorRefused(403, text)


# Idle claims.

IDLE_ORDERS: Mapping[str, Callable[[ClaimRow], Any]] = {
    "name": CLAIM_ORDERS["name"],
    "node": CLAIM_ORDERS["node"],
    "memory": CLAIM_ORDERS["memory"],
    "since": CLAIM_ORDERS["since"],
}


def idle(mirror: Mirror, sight: Sight, query: Query) -> Document:
    """Return the readable claims that hold devices and have computed next to nothing for an hour.

    Those that hold the most memory come first.
    """
    readable = [row for row in mirror.claims.values() if sight.reads(row.key.namespace)]
    found = [row for row in readable if _is_idle(mirror, row) and _is_asked_for(row, query)]
    rows = _in_order(found, query, IDLE_ORDERS, "-memory", lambda row: row.key)
    peaks = mirror.usage.peaks
    return {
        "usage": _usage(mirror, sight),
        "known": peaks is not None,
        "readsClaims": sight.everywhere or bool(sight.namespaces),
        "memoryMiB": sum(row.memory_mib for row in found),
        **_paged(
            rows, query, lambda row: {**_claim_row(mirror, row), "peak": (peaks or {})[row.key]}
        ),
    }


def _idle_sum(mirror: Mirror, claims: Iterable[ClaimRow]) -> Document | None:
    if mirror.usage.peaks is None:
        return None
    found = [claim for claim in claims if _is_idle(mirror, claim)]
    return {"claims": len(found), "memoryMiB": sum(claim.memory_mib for claim in found)}


def _is_idle(mirror: Mirror, row: ClaimRow) -> bool:
    peak = (mirror.usage.peaks or {}).get(row.key)
    used = mirror.usage.claims.get(row.key)
    # Without the compute of each container, as with MIG instances, the peak is only a part.
    if not row.node or peak is None or used is None or used.cores is None:
        return False
    return peak < IDLE_PART * (row.cores or 100)


# Search.


def search(mirror: Mirror, sight: Sight, query: Query) -> Document:
    """Return the claims, nodes and devices whose names contain the text, the first of each kind.

    A claim is also found by its pod and its namespace, a device by its UUID.
    """
    text = query.text.strip().lower()
    claims = _claims_named(mirror, sight, text)
    nodes = mirror.nodes() if sight.devices else {}
    named = sorted(name for name in nodes if _is_found(text, name))
    devices = _devices_named(mirror, nodes, text)
    shown = slice(MOST_FOUND)
    return {
        "text": query.text.strip(),
        "claims": {
            "items": [_claim_row(mirror, row) for row in claims[shown]],
            "total": len(claims),
        },
        "nodes": {
            "items": [_node_row(mirror, nodes[name], sight) for name in named[shown]],
            "total": len(named),
        },
        "devices": {
            "items": [_device(mirror, sight, device) for device in devices[shown]],
            "total": len(devices),
        },
        "readsClaims": sight.everywhere or bool(sight.namespaces),
        "readsDevices": sight.devices,
    }


def _claims_named(mirror: Mirror, sight: Sight, text: str) -> list[ClaimRow]:
    found = [
        row
        for row in mirror.claims.values()
        if sight.reads(row.key.namespace)
        and _is_found(text, row.pod, f"{row.key.namespace}/{row.key.name}")
    ]
    return sorted(found, key=lambda row: row.key)


def _devices_named(mirror: Mirror, nodes: Iterable[str], text: str) -> list[GPUDevice]:
    found = [
        device
        for name in nodes
        for device in mirror.state.ledger.devices(name)
        if _is_found(text, device.status.uuid, device.metadata.name)
    ]
    return sorted(found, key=lambda device: (device.spec.node_name, device.status.index or 0))


def _is_found(text: str, *names: str) -> bool:
    """Return True if a name contains the text; an empty text is in none."""
    return bool(text) and any(text in name.lower() for name in names)


# The last day.


def last_day(mirror: Mirror, sight: Sight, place: Mapping[str, str]) -> WantedSeries:
    """Return the series of the use whose last 24 hours are asked for.

    Args:
        mirror: The cluster.
        sight: What the visitor may see.
        place: `namespace` and `name`: a claim; `namespace`; `name`: a node; nothing: the fleet.

    Raises:
        VisitorRefused: The visitor may not see this use, or the node or claim does not exist.
    """
    namespace, name = place.get("namespace"), place.get("name")
    if namespace is not None:
        _must_read(sight, namespace)
        if name is None:
            return WantedSeries(of_claims=True, labels=(("namespace", namespace),))
        if ClaimKey(namespace, name) not in mirror.claims:
            raise VisitorRefused(404, f"no claim {name} in namespace {namespace}")
        return WantedSeries(of_claims=True, labels=(("claim", name), ("namespace", namespace)))
    _must_see_all_use(sight)
    if name is None:
        return WantedSeries(of_claims=False)
    if name not in mirror.nodes():
        raise VisitorRefused(404, f"no node {name} with devices")
    return WantedSeries(of_claims=False, labels=(("node", name),))


def _must_see_all_use(sight: Sight) -> None:
    _must_see_devices(sight)
    if not sight.everywhere:
        text = "cannot list vgpuclaims.vgpu.dev in all namespaces"
        raise VisitorRefused(403, f'user "{sight.user}" {text}')


# Usage.


def _usage(mirror: Mirror, sight: Sight) -> Document:
    return {"problem": mirror.usage.problem, "hidden": not sight.everywhere}


def _used_of(mirror: Mirror, sight: Sight, uuid: str) -> Used | None:
    """Return the use of a device, if the visitor may read each claim that holds it.

    Else the difference from their own use would be that of other namespaces.
    """
    used = mirror.usage.devices.get(uuid)
    if used is None or sight.everywhere:
        return used
    holders = mirror.state.ledger.holders(uuid)
    return used if all(sight.reads(holder.key.namespace) for holder in holders) else None


def _used(used: Used | None) -> Document | None:
    return None if used is None else {"memoryMiB": used.memory_mib, "cores": used.cores}


def _used_sum(total: UsedSum) -> Document | None:
    """Return a sum; None if nothing of it is known."""
    if not total.known:
        return None
    amounts = {"memoryMiB": total.memory_mib, "cores": total.cores}
    return {**amounts, "known": total.known, "of": total.of}


# Tables.


def _in_order(
    rows: list[T],
    query: Query,
    orders: Mapping[str, Callable[[T], Any]],
    otherwise: str,
    identity: Callable[[T], Any],
) -> list[T]:
    # Sorting is stable, so rows with equal keys stay in the order of their names.
    rows.sort(key=identity)
    order = query.sort or otherwise
    rows.sort(key=orders[order.removeprefix("-")], reverse=order.startswith("-"))
    return rows


def _paged(rows: Sequence[T], query: Query, shown: Callable[[T], Document]) -> Document:
    """Return one page of the rows; the last page if the query is beyond it."""
    pages = max(-(-len(rows) // query.size), 1)
    page = min(query.page, pages)
    first = (page - 1) * query.size
    return {
        "total": len(rows),
        "page": page,
        "pages": pages,
        "size": query.size,
        "items": [shown(row) for row in rows[first : first + query.size]],
    }


def _part(share: GivenPart) -> float:
    return share.held / share.given if share.given else 0.0
