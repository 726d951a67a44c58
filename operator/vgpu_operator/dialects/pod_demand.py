"""What a pod asks for: a claim that it names, or the spec of the claim to make for it."""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_api.v1alpha1 import VGPUClaimSpec


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """A claim, or a template for one, in the pod's own namespace."""

    name: str
    is_template: bool


@dataclass(frozen=True, slots=True)
class PodDemand:
    """One pod's demand: exactly one of `native` and `spec` is there.

    `containers` are the requesting containers: for a dialect those of `spec.requests`, in that
    order; for a named claim those that admission recorded (empty before admission). `slotless` are
    those of them that ask in words of which the kubelet counts nothing: admission gives each a
    slot. `kinds` are those of `ack.node_kinds`, and `by_labels` is True if a node's labels select
    its preferred devices (`follows_labels`).
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
