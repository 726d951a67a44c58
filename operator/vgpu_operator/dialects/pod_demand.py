"""The demand of a pod: a claim that it names, or the spec of a claim to create for it."""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_api.v1alpha1 import VGPUClaimSpec


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """A claim or claim template in the pod's namespace."""

    name: str
    is_template: bool


@dataclass(frozen=True, slots=True)
class PodDemand:
    """The demand of one pod; either `native` or `spec` is set.

    `containers` are the requesting containers: in the order of `spec.requests` or, for a named
    claim, those that admission recorded (none before admission). `slotless` are those whose
    resources the kubelet does not count as slots, so admission adds a slot to each. `kinds` is the
    result of `ack.node_kinds`. `by_labels` is True if node labels select the preferred devices
    (`follows_labels`).
    """

    native: NamedClaim | None = None
    spec: VGPUClaimSpec | None = None
    containers: tuple[str, ...] = ()
    slotless: tuple[str, ...] = ()
    kinds: frozenset[str] | None = None
    by_labels: bool = False

    def __post_init__(self) -> None:
        if (self.native is None) == (self.spec is None):
            raise ValueError("a pod asks either by a named claim or by a spec")
