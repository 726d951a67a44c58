"""Counts the reasons of all nodes that cannot serve a claim, as HAMi does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.demand import Demand, RequestDemand
from vgpu_operator.placement.constraints import UNLIMITED, Budget
from vgpu_operator.placement.fit_node import policies_on, why_not
from vgpu_operator.placement.fleet import REASONS, Fleet, Numbers

_FEW = 16
"""Up to this many nodes are checked one by one."""
_NOTHING_LEFT = Budget(devices=0)
_LARGEST = int(np.iinfo(np.int64).max)
_COUNTED_AS: tuple[Reason, ...] = (
    Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST,
    *(reason for reason in REASONS if reason is not None),
)


def why_none_serve(
    fleet: Fleet, demand: Demand, nodes: Sequence[int], budget: Budget = UNLIMITED
) -> Iterator[tuple[Tally, Sequence[int]]]:
    """Yield the reasons of nodes that accept the pod but cannot serve the claim.

    Args:
        fleet: The state of all devices.
        demand: The claim's requests.
        nodes: The numbers of the nodes.
        budget: The amounts that the claim's namespace may still take.

    Yields:
        Reasons, and the nodes that have exactly these.
    """
    judged = set[int]()
    if len(nodes) > _FEW and demand.numa != "Require":
        if len(demand.requests) > 1 and fleet.exceeds_everywhere(demand, budget):
            # Which request exceeds the quota depends on the node, but planning the claim on each
            # node costs a hundred times as much. So each device counts as one too many.
            budget = _NOTHING_LEFT
        for tally, alike in _of_first(fleet, demand, nodes, budget):
            judged.update(alike)
            yield tally, alike
    for node in nodes:
        if node not in judged:
            yield why_not(fleet, node, demand, demand.numa, budget), (node,)


def _of_first(
    fleet: Fleet, demand: Demand, nodes: Sequence[int], budget: Budget
) -> Iterator[tuple[Tally, Sequence[int]]]:
    """Yield the reasons of nodes that cannot serve the first request."""
    if not _is_plain(demand.requests[0]):
        return
    plain = nodes
    if any(fleet.node_in_mig_mode):
        plain = [node for node in nodes if not fleet.node_in_mig_mode[node]]
    if not any("Mutex" in policies for policies in _policies(fleet, demand, plain)):
        yield from _together(fleet, demand, plain, budget, mutex=False)
        return
    for mutex in (False, True):
        alike = [n for n in plain if ("Mutex" in policies_on(fleet, n, demand)) == mutex]
        yield from _together(fleet, demand, alike, budget, mutex=mutex)


def _policies(fleet: Fleet, demand: Demand, nodes: Sequence[int]) -> set[tuple[DevicePolicy, ...]]:
    """Return the distinct device policies of some nodes."""
    if demand.device_policies:
        return {demand.device_policies}
    of = fleet.node_labelled if demand.by_labels else fleet.node_policies
    return set(map(of.__getitem__, nodes))


def _is_plain(request: RequestDemand) -> bool:
    """Return True if a request's checks depend only on a device's properties and amounts in use.

    UUIDs select individual devices, and a group's mutex depends on linked devices. Equal sizes,
    numbered cores and neighbours depend on the other requests on the device.
    """
    named = request.uuids or request.exclude_uuids or request.group_mutex
    return not (named or request.one_size or request.is_marked)


def _together(
    fleet: Fleet, demand: Demand, nodes: Sequence[int], budget: Budget, *, mutex: bool
) -> Iterator[tuple[Tally, Sequence[int]]]:
    request = demand.requests[0]
    refused = fleet.refused(request, budget, mutex=mutex)
    counts, too_few = refused.counts, refused.of_vendor < request.count
    at = np.asarray(nodes, dtype=np.intp)
    enough = at[~too_few[at]] if too_few.any() else at
    # some nodes may serve the first of several requests; a single request fails on all of them
    if len(demand.requests) > 1:
        enough = enough[counts[enough, 0] < request.count]
    if too_few[at].any():
        yield Tally.of_node(Reason.NODE_INSUFFICIENT_DEVICE), at[too_few[at]].tolist()
    if not len(enough):
        return
    rows = counts[enough]
    # Many nodes refuse for the same reasons, so make one tally for each distinct row.
    _, first, which = np.unique(row_numbers(rows), return_index=True, return_inverse=True)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    for number, alike in zip(first, np.split(enough[order], ends[:-1]), strict=True):
        yield _tally(rows[number].tolist()), alike.tolist()


def row_numbers(rows: Numbers) -> Numbers:
    """Return a number for each row of counts; numbers are equal if and only if the rows are.

    Sorting these numbers costs a third of sorting the rows as bytes.
    """
    numbers = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T[rows.any(axis=0)]:
        size = int(column.max()) + 1
        if (int(numbers.max()) + 1) * size > _LARGEST:  # renumber before the product overflows
            numbers = np.unique(numbers, return_inverse=True)[1]
        numbers = numbers * size + column
    return numbers


def _tally(numbers: Sequence[int]) -> Tally:
    found = {why: n for why, n in zip(_COUNTED_AS, numbers, strict=True) if n}
    return Tally(found, sum(numbers))
