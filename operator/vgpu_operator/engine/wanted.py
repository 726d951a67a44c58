"""What waits for cards: a claim that a pod without a node would use, or an Immediate one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import VGPUClaimSpec
from vgpu_operator.ask import Ask
from vgpu_operator.dialects.ack import node_kinds
from vgpu_operator.engine.books import Books
from vgpu_operator.engine.claim_writer import Key
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.engine.reservations import Reservations
from vgpu_operator.ledger import Ledger, node_admits


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim asks for, where it may be, and its place in the order: least first.

    `nodes` looks at every node, so it is called only when it is needed.
    """

    ask: Ask
    nodes: Callable[[], Sequence[str]]
    rank: tuple[int, str]


@dataclass(frozen=True, slots=True)
class WantedClaims:
    """Says of a claim whether it waits, and for what.

    Attributes:
        config: Defaults and policies.
        books: What was seen.
        ledger: Knows the nodes with cards.
        reservations: Who has cards waits no more.
        spec_for: The spec of the claim that a pod has or will have.
    """

    config: ClusterConfig
    books: Books
    ledger: Ledger
    reservations: Reservations
    spec_for: Callable[[Consumer], VGPUClaimSpec | Refusal]

    def __call__(self, key: Key) -> Wanted | None:
        """What the claim waits for; None when it does not wait."""
        claim = self.books.claim(key)
        if self.reservations.of_claim(key) is not None:
            return None
        if claim is not None and claim.status.allocation is not None:
            return None
        for consumer in self.books.consumers_of(key):
            spec = self.spec_for(consumer) if consumer.wants_node else None
            if isinstance(spec, VGPUClaimSpec):
                created = consumer.pod.metadata.creation_timestamp or ""
                return self._wanted(spec, created, consumer.pod)
        if claim is None or claim.spec.binding_mode != "Immediate":
            return None
        if claim.metadata.deletion_timestamp is not None:
            return None
        return self._wanted(claim.spec, claim.metadata.creation_timestamp or "", None)

    def _wanted(self, spec: VGPUClaimSpec, created: str, pod: Pod | None) -> Wanted:
        def nodes() -> list[str]:
            known = self.books.nodes
            kinds = None if pod is None else node_kinds(pod, self.config)
            return [
                name
                for name in self.ledger.nodes()
                if name in known
                and (pod is None or node_admits(pod, known[name], kinds=kinds) is None)
            ]

        return Wanted(Ask.of(spec, self.config), nodes, (-spec.scheduling_priority, created))
