"""PodDisruptionBudgets: finds the pods that may not be evicted now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vgpu_api.core import Pod, PodDisruptionBudget
from vgpu_operator.node_filter.pod_affinity import Selector


@dataclass(slots=True)
class Budgets:
    """The observed budgets, by namespace and name.

    Attributes:
        are_listed: True once all budgets have been listed; until then nobody is preempted.
    """

    are_listed: bool = False
    _of: dict[str, dict[str, tuple[PodDisruptionBudget, Selector]]] = field(default_factory=dict)

    def put(self, budget: PodDisruptionBudget) -> None:
        """Store a budget."""
        namespace = self._of.setdefault(budget.metadata.namespace or "", {})
        namespace[budget.metadata.name] = budget, Selector.of(budget.spec.selector)

    def remove(self, namespace: str, name: str) -> None:
        """Forget a budget."""
        there = self._of.get(namespace, {})
        there.pop(name, None)
        if not there:
            self._of.pop(namespace, None)

    def broken_by(self, pods: Iterable[Pod]) -> set[str]:
        """Return the UIDs of the pods that these evictions, in this order, could not include.

        Each eviction uses up one disruption of every budget that selects the pod. As in the
        eviction API, an empty selector selects all pods of the namespace that have labels.
        """
        if not self._of:
            return set()
        left: dict[tuple[str, str], int] = {}
        broken = set[str]()
        for pod in pods:
            namespace, name = pod.metadata.namespace or "", pod.metadata.name
            for budget, selector in self._of.get(namespace, {}).values():
                if not pod.metadata.labels or not selector.matches(pod.metadata.labels):
                    continue
                if name in budget.status.disrupted_pods:
                    continue  # the budget has counted this eviction already
                key = namespace, budget.metadata.name
                left[key] = left.get(key, budget.status.disruptions_allowed) - 1
                if left[key] < 0:
                    broken.add(pod.metadata.uid)
        return broken
