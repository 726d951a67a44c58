"""Why nodes do not serve a claim, counted as HAMi counts: for all of them in one look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.demand import Demand
from vgpu_operator.placement.arrays import REASONS, Numbers
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.planning import policies_on, why_not

_FEW = 16
"""So few nodes are checked one by one."""
_LARGEST = int(np.iinfo(np.int64).max)
_COUNTED_AS: tuple[Reason, ...] = (
    Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST,
    *(reason for reason in REASONS if reason is not None),
)


def why_none_serve(
    columns: Columns, demand: Demand, nodes: Sequence[int]
) -> Iterator[tuple[Tally, Sequence[int]]]:
    """The reasons of nodes that take the pod and are known not to serve the claim.

    Args:
        columns: The state of all devices.
        demand: What was asked for, and no quota.
        nodes: Their numbers.

    Yields:
        Reasons, and the nodes that have just these.
    """
    if len(nodes) <= _FEW or not _is_plain(demand):
        yield from ((why_not(columns, node, demand, demand.numa), (node,)) for node in nodes)
        return
    plain = nodes
    if any(columns.node_in_mig_mode):
        plain = [node for node in nodes if not columns.node_in_mig_mode[node]]
        nodes_in_mig_mode = (node for node in nodes if columns.node_in_mig_mode[node])
        yield from (
            (why_not(columns, node, demand, demand.numa), (node,)) for node in nodes_in_mig_mode
        )
    if not any("Mutex" in policies for policies in _policies(columns, demand, plain)):
        yield from _together(columns, demand, plain, mutex=False)
        return
    for mutex in (False, True):
        alike = [n for n in plain if ("Mutex" in policies_on(columns, n, demand)) == mutex]
        yield from _together(columns, demand, alike, mutex=mutex)


def _policies(
    columns: Columns, demand: Demand, nodes: Sequence[int]
) -> set[tuple[DevicePolicy, ...]]:
    """The different policies for the devices of some nodes."""
    if demand.device_policies:
        return {demand.device_policies}
    of = columns.node_labelled if demand.by_labels else columns.node_policies
    return set(map(of.__getitem__, nodes))


def _is_plain(demand: Demand) -> bool:
    """One request whose devices are judged each on its own.

    Check 4 is about devices before, UUIDs are about one device, a group's mutex is about its
    others, sizes, numbered cores and neighbours about what is on the device, and later requests are
    about earlier ones.
    """
    request = demand.requests[0]
    named = request.uuids or request.exclude_uuids or request.group_mutex
    special = named or request.one_size or request.is_marked
    return len(demand.requests) == 1 and demand.numa != "Require" and not special


def _together(
    columns: Columns, demand: Demand, nodes: Sequence[int], *, mutex: bool
) -> Iterator[tuple[Tally, Sequence[int]]]:
    request = demand.requests[0]
    refused = columns.arrays.refused(columns, request, mutex=mutex)
    counts, too_few = refused.counts, refused.of_vendor < request.count
    at = np.asarray(nodes, dtype=np.intp)
    enough = at[~too_few[at]] if too_few.any() else at
    if len(enough) < len(at):
        yield Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE), at[too_few[at]].tolist()
    if not len(enough):
        return
    rows = counts[enough]
    # Many nodes refuse for the same reasons: a tally is made for each row that is different.
    _, first, which = np.unique(row_numbers(rows), return_index=True, return_inverse=True)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    for number, alike in zip(first, np.split(enough[order], ends[:-1]), strict=True):
        yield _tally(rows[number].tolist()), alike.tolist()


def row_numbers(rows: Numbers) -> Numbers:
    """A number for each row of counts: equal rows have the same, others do not.

    Sorting numbers costs a third of sorting rows as bytes.
    """
    numbers = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T[rows.any(axis=0)]:
        size = int(column.max()) + 1
        if (int(numbers.max()) + 1) * size > _LARGEST:  # small again, and as different
            numbers = np.unique(numbers, return_inverse=True)[1]
        numbers = numbers * size + column
    return numbers


def _tally(numbers: Sequence[int]) -> Tally:
    found = {why: n for why, n in zip(_COUNTED_AS, numbers, strict=True) if n}
    return Tally(found, sum(numbers))
