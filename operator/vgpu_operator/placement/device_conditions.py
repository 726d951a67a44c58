"""The properties of devices and nodes, and equal numbers for devices that are alike.

A fleet has many devices, but few kinds of devices in few conditions. Devices that are alike get the
same number, so a result for one of them is valid for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.gpudevice import DeviceMode
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy
from vgpu_operator.demand import KindDemand, RequestDemand
from vgpu_operator.placement.mig_geometry import Profile
from vgpu_operator.vendors.parts import Part

NUMA_UNKNOWN_FROM = 1 << 20
"""An unknown NUMA node gets minus this number, minus the index of its device."""


class Facts(NamedTuple):
    """The properties of a device without links, node and usage; equal for similar devices."""

    vendor: str
    model: str
    product: str
    mode: DeviceMode
    healthy: bool
    duplicate: bool
    cordoned: bool
    slots: int
    cores: int
    memory_mib: int
    profiles: tuple[Profile, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device without its usage.

    Attributes:
        name: The name of its GPUDevice object.
        node: The node that it is in.
        uuid: Its UUID in the driver's spelling.
        index: Its number on the node.
        vendor: In lower case.
        model: Its published type, including the manufacturer, in lower case.
        mode: Shared, Exclusive or MIG.
        numa: Its NUMA node. If unknown, a negative number of its own.
        slots: The largest number of requests that it serves at once.
        cores: Allocatable compute in percent.
        memory_mib: Allocatable memory in MiB.
        healthy: False if it must not be allocated.
        duplicate: True if another object has the same UUID, so that the device's node is unknown.
        cordoned: True if it gets no new requests.
        links: The quality of its links to other devices of the node, sorted by UUID.
        product: Its model as the driver spells it.
        profiles: The MIG profiles it offers, if it is in MIG mode (`mig_geometry`).
        parts: The parts into which it is divided, smallest first, if its node registers any.
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
    links: Mapping[str, int] = field(default_factory=dict)
    duplicate: bool = False
    product: str = ""
    profiles: tuple[Profile, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def facts(self) -> Facts:
        """Return the properties of the device without links and node."""
        return Facts(
            *(self.vendor, self.model, self.product, self.mode),
            *(self.healthy, self.duplicate, self.cordoned),
            *(self.slots, self.cores, self.memory_mib),
            *(self.profiles, self.parts),
        )


def refusal_of_facts(facts: Facts, request: RequestDemand) -> Reason | None:
    """Run checks 1 to 3: is the device usable, and of the requested kind?"""
    if facts.duplicate:  # our own check precedes HAMi's: the node of a duplicate device is unknown
        return Reason.CARD_UUID_DUPLICATE
    if not facts.healthy:
        return Reason.CARD_NOT_HEALTHY
    if facts.cordoned:
        return Reason.CARD_CORDONED
    if facts.vendor != request.vendor:
        return Reason.CARD_TYPE_MISMATCH
    if request.mode not in ("Any", facts.mode):
        return Reason.CARD_TYPE_MISMATCH
    return None if _is_selected(facts, request) else Reason.CARD_TYPE_MISMATCH


def _is_selected(facts: Facts, request: RequestDemand) -> bool:
    if request.models and not any(part in facts.model for part in request.models):
        return False
    if any(part in facts.model for part in request.exclude_models):
        return False
    return not request.kinds or any(_is_of(kind, facts) for kind in request.kinds)


def _is_of(kind: KindDemand, facts: Facts) -> bool:
    if facts.product in kind.exclude_models or (kind.models and facts.product not in kind.models):
        return False
    most = facts.memory_mib if kind.most_mib is None else kind.most_mib
    return kind.least_mib <= facts.memory_mib <= most


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's readiness for pods, and its own policies.

    `device_policies` order its devices and `node_policy` ranks it among nodes; a claim's policies
    take precedence over both. `labelled_policies` come from ACK's labels and apply to pods that use
    ACK's resource names.
    """

    ready: bool = False
    schedulable: bool = True
    device_policies: tuple[DevicePolicy, ...] = ("Spread",)
    node_policy: NodePolicy | None = None
    labelled_policies: tuple[DevicePolicy, ...] = ("Binpack",)


_CONDITIONS_KEPT = 1 << 18
_QUESTIONS_KEPT = 1_024
_ANSWERS_KEPT = 4_096

State = TypeVar("State", bound=Hashable)
Answer = TypeVar("Answer")


class Findings(Generic[State, Answer]):
    """A cache of results that depend only on a device's state, shared by many requests.

    Args:
        questions: The number of questions to keep; beyond that, the oldest is evicted. (Evicting
            the least recently used would take a write at each lookup.)
        answers: The number of answers to keep for a question; beyond that, all are dropped.
    """

    def __init__(self, *, questions: int = _QUESTIONS_KEPT, answers: int = _ANSWERS_KEPT) -> None:
        self._questions = questions
        self._answers = answers
        self._known: dict[Hashable, dict[State, Answer]] = {}

    def of(self, question: Hashable) -> dict[State, Answer]:
        """Return the known answers, by state; the caller adds new ones."""
        known = self._known.setdefault(question, {})
        if len(self._known) > self._questions:
            del self._known[next(iter(self._known))]
        if len(known) > self._answers:
            known.clear()
        return known

    def forget(self) -> None:
        """Drop everything, because states are renumbered."""
        self._known.clear()


class Conditions:
    """The numbers of facts, kinds and conditions, and caches that use them as keys.

    A device's *facts* are its properties without links, node and usage; a *kind* is facts and, in
    MIG mode, the slices in use; a *condition* is a kind and the amounts in use.

    Attributes:
        facts: All facts, by number.
        right_kinds: By request, True for each kind that passes the checks of properties.
        in_parts: By request for a part, the resolved request for devices with the same facts.
        fitting: By request, True for each condition that passes the checks which depend only on it.
        scores: By request and weights, the score of a device in each condition.
        are_too_many: True if most conditions are outdated, so that `forget` should be called.
    """

    def __init__(self) -> None:
        self.facts: list[Facts] = []
        self._facts: dict[Facts, int] = {}
        self._kinds: dict[tuple[int, int], int] = {}
        self._conditions: dict[tuple[int, int, int, int], int] = {}
        self.are_too_many = False
        self.right_kinds: Findings[int, bool] = Findings()
        self.in_parts: Findings[int, RequestDemand | None] = Findings()
        self.fitting: Findings[int, bool] = Findings()
        self.scores: Findings[int, float] = Findings()

    def number(self, facts: Facts) -> int:
        """Return the number for a device's facts."""
        number = self._facts.get(facts)
        if number is None:
            number = self._facts[facts] = len(self.facts)
            self.facts.append(facts)
        return number

    def kind(self, facts: int, slices: int) -> int:
        """Return the number for a kind.

        Args:
            facts: The number of the device's facts.
            slices: The slices in use, in MIG mode: the free rest counts as another kind of device.
        """
        key = (facts, slices)
        return self._kinds.setdefault(key, len(self._kinds))

    def condition(self, kind: int, slots: int, cores: int, memory: int) -> int:
        """Return the number for a condition."""
        key = (kind, slots, cores, memory)
        number = self._conditions.get(key)
        if number is None:
            number = self._conditions[key] = len(self._conditions)
            self.are_too_many = number >= _CONDITIONS_KEPT
        return number

    def forget(self) -> None:
        """Restart the numbering of conditions; earlier numbers become invalid."""
        self._conditions.clear()
        self.are_too_many = False
        self.fitting.forget()
        self.scores.forget()
