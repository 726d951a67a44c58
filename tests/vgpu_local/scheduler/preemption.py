"""Chooses victims as kube-scheduler does: by its own filters only, which know no device.

On each node that was refused for a shortage, all less important pods are taken as removed; then
each is put back, the most important first, if the pod still fits. The remaining ones are the
victims. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from vgpu_local.scheduler.occupancy import Amounts, plus


@dataclass(frozen=True, slots=True)
class Running:
    """A pod that has a node.

    Attributes:
        uid: The pod's UID.
        priority: Its priority.
        requests: What it uses of the node.
    """

    uid: str
    priority: int
    requests: Amounts


def victims_on(
    priority: int, running: Sequence[Running], used: Amounts, fits: Callable[[Amounts], bool]
) -> list[Running]:
    """Return the pods to evict for one of this priority; empty if eviction does not help.

    Args:
        priority: The priority of the pod that waits.
        running: The pods of the node.
        used: The sum of their requests.
        fits: Returns True if the pod fits on the node while so much is in use.
    """
    weaker = sorted((each for each in running if each.priority < priority), key=_importance)
    for each in weaker:
        used = plus(used, _negative(each.requests))
    if not fits(used):
        return []
    victims = []
    for each in weaker:
        beside = plus(used, each.requests)
        if fits(beside):
            used = beside
        else:
            victims.append(each)
    return victims


def best_node(victims: Mapping[str, Sequence[Running]]) -> str:
    """Return the node where the least important pods end."""

    def cost(node: str) -> tuple[int, int, int, str]:
        priorities = [each.priority for each in victims[node]]
        return max(priorities), sum(priorities), len(priorities), node

    return min(victims, key=cost)


def _importance(pod: Running) -> tuple[int, str]:
    return -pod.priority, pod.uid


def _negative(amounts: Amounts) -> Mapping[str, Fraction]:
    return {name: -amount for name, amount in amounts.items()}
