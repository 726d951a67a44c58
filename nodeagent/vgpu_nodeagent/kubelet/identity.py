"""Finds the pod of a set of slots; three records of the kubelet and the agent must agree.

The device plugin API names no pod. The kubelet's checkpoint shows the pod UID and container of each
of our slot allocations, PodResources the name of the pod that holds the slots now, and our own
watch the UID of that name. If they differ, one of them is behind: the start is refused, and the
kubelet asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vgpu_api.core.pod import Pod
from vgpu_nodeagent.errors import Refused, Why
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry
from vgpu_nodeagent.kubelet.pod_resources import ContainerSlots, PodListing
from vgpu_nodeagent.state.slots import Binding


@dataclass(frozen=True, slots=True)
class Consumer:
    """The pod that holds the slots, and its slot allocations on them.

    An ordinary init container and a later container of its pod may both have a slot allocation on
    them. The kubelet does not report which of the two it is about to start, so both are filled.
    `cpus` has the CPUs that the CPU manager assigned exclusively, by container. `of_another` names
    the containers if another device plugin allocated the slots; there are no bindings then.
    """

    pod: Pod
    bindings: tuple[Binding, ...]
    cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    of_another: tuple[str, ...] = ()


def identify(
    slot_ids: Iterable[str],
    *,
    entries: Sequence[KubeletEntry],
    listing: PodListing,
    pods: Mapping[tuple[str, str], Pod],
) -> Consumer:
    """Find the pod whose container the kubelet is about to start.

    Args:
        slot_ids: The device ids in the PreStartContainer call.
        entries: The entries for our resource in the kubelet's checkpoint.
        listing: The response of PodResources, requested after the call came in.
        pods: Our own watch of this node's pods, by (namespace, name).

    Raises:
        Refused: The records do not agree on one pod; the message says how they differ.
    """
    requested = frozenset(slot_ids)
    slots = ", ".join(sorted(requested))
    mine = [entry for entry in entries if entry.slot_ids & requested]
    if not any(entry.slot_ids == requested for entry in mine):
        raise Refused(
            Why.UNKNOWN_ALLOCATION, f"the kubelet's checkpoint has no container with slots {slots}"
        )
    if len({entry.pod_uid for entry in mine}) > 1:
        raise Refused(
            Why.RECORDS_DISAGREE, f"the kubelet's checkpoint gives slots {slots} to several pods"
        )
    pod = _pod(mine, listing, requested, pods)
    _refuse_another(pod, mine[0].pod_uid, slots)
    cpus = {holder.container: holder.cpus for holder in listing.holders(requested) if holder.cpus}
    of_another = _of_another(mine)
    return Consumer(pod, () if of_another else _bindings(mine), cpus, of_another)


def _of_another(mine: Sequence[KubeletEntry]) -> tuple[str, ...]:
    return tuple(entry.container for entry in mine if not entry.slot_allocation)


def _bindings(mine: Sequence[KubeletEntry]) -> tuple[Binding, ...]:
    return tuple(Binding(entry.slot_allocation, entry.container) for entry in mine)


def _refuse_another(pod: Pod, uid: str, slots: str) -> None:
    """Refuse a pod that is not the one in the kubelet's checkpoint, or has ended."""
    place = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if pod.metadata.uid != uid:
        raise Refused(
            Why.RECORDS_DISAGREE,
            f"slots {slots} belong to the pod with UID {uid}, but "
            f"{place} is {pod.metadata.uid} now",
        )
    if pod.is_terminal:
        raise Refused(Why.POD_ENDED, f"pod {place} has ended already")


def _pod(
    mine: Sequence[KubeletEntry],
    listing: PodListing,
    requested: frozenset[str],
    pods: Mapping[tuple[str, str], Pod],
) -> Pod:
    holders = listing.holders(requested)
    places = {(holder.namespace, holder.pod) for holder in holders}
    if len(places) > 1:
        raise Refused(Why.RECORDS_DISAGREE, f"several pods hold the slots: {sorted(places)}")
    if not places:
        return _init_only(mine, listing, pods)
    (place,) = places
    _agree(mine, holders)
    pod = pods.get(place)
    if pod is None:
        raise Refused(
            Why.POD_UNKNOWN, f"pod {place[0]}/{place[1]} has not been seen on this node yet"
        )
    return pod


def _agree(mine: Sequence[KubeletEntry], holders: Sequence[ContainerSlots]) -> None:
    named = {entry.container for entry in mine}
    for holder in holders:
        if holder.container not in named:
            raise Refused(
                Why.RECORDS_DISAGREE,
                f"PodResources lists the slots under container {holder.container}, "
                f"the kubelet's checkpoint under {', '.join(sorted(named))}",
            )


def _init_only(
    mine: Sequence[KubeletEntry],
    listing: PodListing,
    pods: Mapping[tuple[str, str], Pod],
) -> Pod:
    """Return the pod if only ordinary init containers hold the slots: PodResources omits them."""
    uid = mine[0].pod_uid
    pod = next((pod for pod in pods.values() if pod.metadata.uid == uid), None)
    init = {c.name for c in pod.spec.init_containers if not c.is_sidecar} if pod else set()
    if (
        pod is None
        or (pod.metadata.namespace or "", pod.metadata.name) not in listing.pods
        or not all(entry.container in init for entry in mine)
    ):
        raise Refused(Why.NOT_HELD, "the kubelet lists no container that holds these slots")
    return pod
