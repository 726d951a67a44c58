"""Finds out which pods of a waiting group would find a place together now.

The operator remembers why a group could not start in its last try. Here this is computed again, so
the answer is also there before the first try and after a change of the cluster.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.scheduling.groups import least_of, members, others_of, waiting_members
from vgpu_operator.engine.scheduling.kept import Yielding
from vgpu_operator.engine.scheduling.refusal import Refusal
from vgpu_operator.engine.scheduling.schedule_one import class_of, nodes_for, spec_for
from vgpu_operator.engine.state import State
from vgpu_operator.insight.live_cluster import Unread, known_part
from vgpu_operator.placement import place

_NAMED = 3
"""Pods that a text names."""


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """The place that a waiting pod of a group would get.

    Attributes:
        pod: The pod's name.
        node: The node; empty: none.
        refused: Why it would get none; empty if it would get one.
    """

    pod: str
    node: str
    refused: str


@dataclass(frozen=True, slots=True)
class GroupPlaces:
    """The places that the waiting pods of a group would get beside each other.

    Attributes:
        name: The group's name.
        least: How many of its pods must start together; None if its PodGroup is not known.
        standing: How many pods run already, or need no devices.
        members: The pods that wait, by name.
        message: The same, for people.
    """

    name: str
    least: int | None
    standing: int
    members: tuple[MemberPlace, ...]
    message: str


def places_of_group(state: State, key: GroupKey, unread: Unread) -> GroupPlaces:
    """Return where the waiting pods of a group would go now; the state stays as it is.

    Args:
        state: The engine's state.
        key: The group.
        unread: The parts of the cluster that the state lacks.
    """
    waiting = waiting_members(state, key)
    with ExitStack() as held:
        found = tuple(_place(state, pod, unread, held) for pod in waiting)
    least = least_of(state, key)
    standing = len(members(state, key)) - len(waiting) + others_of(state, key)
    message = _in_words(key, least, standing, found)
    return GroupPlaces(key.name, least, standing, found, message)


def _place(state: State, pod: GPUPod, unread: Unread, held: ExitStack) -> MemberPlace:
    """Return the place of one pod, and hold it for the pods after it."""
    name, claim = pod.pod.metadata.name, state.cache.claim(pod.claim)
    if claim is not None and claim.status.allocation is not None:
        return MemberPlace(name, claim.status.allocation.node_name, "")
    spec = spec_for(state, pod)
    if isinstance(spec, Refusal):
        return MemberPlace(name, "", spec.message)
    kind = class_of(state, known_part(pod, unread), spec)
    with state.deciding(
        pod.claim, Yielding.AS_IMPORTANT, priority=pod.priority, group=pod.group
    ) as kept:
        plan = place(
            state.ledger.columns,
            kind.request,
            nodes=nodes_for(kind, state),
            budget=state.ledger.budget(kind.namespace, kind.scopes),
            kept=kept,
        )
        refused = plan.text if plan.refused else ""
    if plan.node is None:
        return MemberPlace(name, "", refused)
    assumed = state.ledger.assume(pod.claim, spec, plan.allocation())
    held.callback(state.ledger.forget, assumed)
    if pod.is_gated:
        state.ledger.expect_pod(pod.pod, plan.node)
        held.callback(state.ledger.forget_pod, pod.uid)
    return MemberPlace(name, plan.node, "")


def _in_words(
    key: GroupKey, least: int | None, standing: int, found: tuple[MemberPlace, ...]
) -> str:
    refused = [each for each in found if each.refused]
    text = f"{len(found) - len(refused)} of {len(found)} waiting pods of group {key.name}"
    text += " would find a place now"
    if refused:
        names = ", ".join(each.pod for each in refused[:_NAMED])
        more = " and others" if len(refused) > _NAMED else ""
        text += f", and {names}{more} would not ({refused[0].refused})"
    if standing:
        text += f"; {standing} run already or need no devices"
    if least is None:
        return f"{text}; its PodGroup is not known here"
    return f"{text}; {least} must start together"
