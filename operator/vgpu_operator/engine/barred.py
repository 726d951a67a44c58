"""Which nodes are barred to a pod by their labels or taints, without looking at every node.

Pods with equal selectors and tolerations are one class; a class remembers the nodes that it must
not use and looks again only at those whose labels or taints have changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from vgpu_api.core import Node, Pod
from vgpu_api.reasons import Tally
from vgpu_operator.ledger import barred_by

_CLASSES_KEPT = 64

_Class: TypeAlias = tuple[object, ...]
"""Selector, tolerations and kinds of nodes, as far as they make a difference."""


@dataclass(slots=True)
class _Known:
    """What is known for a class: reasons by node, and the nodes to be looked at again."""

    reasons: dict[str, Tally] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)


class Barred:
    """Reasons by class of pods and node.

    Args:
        nodes: By name, as they are now; `changed` says which have changed.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._classes: OrderedDict[_Class, _Known] = OrderedDict()

    def changed(self, name: str) -> None:
        """A node came or went, or its labels or taints changed."""
        for known in self._classes.values():
            known.stale.add(name)

    def to(self, pod: Pod, *, kinds: frozenset[str] | None = None) -> Mapping[str, Tally]:
        """The nodes that the pod must not use, and why; not to be kept beyond the next change.

        Args:
            pod: Who wants a node.
            kinds: As for `barred_by`.
        """
        key = _class_of(pod, kinds)
        known = self._classes.get(key)
        if known is None:
            known = self._classes[key] = _Known(stale=set(self._nodes))
            if len(self._classes) > _CLASSES_KEPT:
                self._classes.popitem(last=False)
        else:
            self._classes.move_to_end(key)
        if known.stale:
            self._look(pod, kinds, known)
            known.stale = set()
        return known.reasons

    def _look(self, pod: Pod, kinds: frozenset[str] | None, known: _Known) -> None:
        for name in known.stale:
            node = self._nodes.get(name)
            reason = None if node is None else barred_by(pod, node, kinds=kinds)
            if reason is None:
                known.reasons.pop(name, None)
            else:
                known.reasons[name] = Tally.of_node(reason)


def _class_of(pod: Pod, kinds: frozenset[str] | None) -> _Class:
    return (
        kinds,
        tuple(sorted(pod.spec.node_selector.items())),
        tuple((t.key, t.operator, t.value, t.effect) for t in pod.spec.tolerations),
    )
