"""A card and a node as placement knows them, apart from what is in use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.gpudevice import DeviceMode
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy
from vgpu_operator.ask import RequestAsk
from vgpu_operator.placement.geometry import Profile

NUMA_UNKNOWN_FROM = 1 << 20
"""Unknown NUMA nodes are numbered from minus this, by the index of their card."""


class Facts(NamedTuple):
    """All that a card is apart from links, place and use: equal for cards that are alike."""

    vendor: str
    model: str
    mode: DeviceMode
    healthy: bool
    duplicate: bool
    cordoned: bool
    slots: int
    cores: int
    memory_mib: int
    profiles: tuple[Profile, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of a card apart from its use.

    Attributes:
        name: The GPUDevice object.
        node: The node that holds it.
        uuid: The card, as the driver spells it.
        index: Its number on the node.
        vendor: In lower case.
        model: Its type as published, with the maker, in lower case.
        mode: How it is divided.
        numa: Its NUMA node; below 0, and another for each card of a node, where it is unknown.
        slots: Requests it serves at most.
        cores: Percent of compute that may be given away.
        memory_mib: MiB that may be given away.
        healthy: It works and may be given.
        duplicate: Another object claims its UUID, so nobody knows where it is.
        cordoned: Nothing new on it.
        links: (UUID of another card of the node, how well the two are connected), sorted.
        profiles: What it may be cut into if it is in MIG mode (`geometry`).
    """

    name: str
    node: str
    uuid: str
    index: int
    vendor: str
    model: str
    mode: DeviceMode
    numa: int
    slots: int
    cores: int
    memory_mib: int
    healthy: bool
    cordoned: bool
    links: tuple[tuple[str, int], ...] = ()
    duplicate: bool = False
    profiles: tuple[Profile, ...] = ()

    @property
    def facts(self) -> Facts:
        """What it is, apart from links and place."""
        return Facts(
            *(self.vendor, self.model, self.mode),
            *(self.healthy, self.duplicate, self.cordoned),
            *(self.slots, self.cores, self.memory_mib),
            self.profiles,
        )


def refusal_of_facts(facts: Facts, request: RequestAsk) -> Reason | None:
    """Checks 1 to 3: whether a card is in order and of the kind asked for."""
    if facts.duplicate:  # ours, before HAMi's first: nobody knows where the card is
        return Reason.CARD_UUID_DUPLICATE
    if not facts.healthy:
        return Reason.CARD_NOT_HEALTHY
    if facts.cordoned:
        return Reason.CARD_CORDONED
    if facts.vendor != request.vendor:
        return Reason.CARD_TYPE_MISMATCH
    if request.mode not in ("Any", facts.mode):
        return Reason.CARD_TYPE_MISMATCH
    if request.models and not any(part in facts.model for part in request.models):
        return Reason.CARD_TYPE_MISMATCH
    if any(part in facts.model for part in request.exclude_models):
        return Reason.CARD_TYPE_MISMATCH
    return None


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of a node: whether it takes pods, and its own policies, if it has any.

    `device_policies` are for its cards, `node_policy` for its place among nodes; a claim's come
    before both. `labelled_policies` are what ACK's labels say of its cards, to pods in ACK's words.
    """

    ready: bool = False
    schedulable: bool = True
    device_policies: tuple[DevicePolicy, ...] = ("Spread",)
    node_policy: NodePolicy | None = None
    labelled_policies: tuple[DevicePolicy, ...] = ("Binpack",)
