"""A device and a node as placement knows them, and numbers for devices that are alike.

What is found out about one device holds for all that are alike: a fleet has many devices, of few
kinds and in few conditions. Equal devices have equal numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1.gpudevice import DeviceMode
from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy, NodePolicy
from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement.mig_geometry import Profile
from vgpu_operator.vendors.parts import Part

NUMA_UNKNOWN_FROM = 1 << 20
"""Unknown NUMA nodes are numbered from minus this, by the index of their device."""


class Facts(NamedTuple):
    """All that a device is apart from links, place and use: equal for devices that are alike."""

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
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of a device apart from its use.

    Attributes:
        name: The GPUDevice object.
        node: The node that holds it.
        uuid: The device, as the driver spells it.
        index: Its number on the node.
        vendor: In lower case.
        model: Its type as published, with the maker, in lower case.
        mode: How it is divided.
        numa: Its NUMA node; below 0, and another for each device of a node, where it is unknown.
        slots: Requests it serves at most.
        cores: Percent of compute that may be given away.
        memory_mib: MiB that may be given away.
        healthy: It works and may be given.
        duplicate: Another object claims its UUID, so its place is unknown.
        cordoned: Nothing new on it.
        links: How well it is connected to other devices of the node, by their UUIDs, sorted.
        profiles: What it may be cut into if it is in MIG mode (`mig_geometry`).
        parts: What it is given in, where its node registers that, from the smallest on.
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
    profiles: tuple[Profile, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def facts(self) -> Facts:
        """What it is, apart from links and place."""
        return Facts(
            *(self.vendor, self.model, self.mode),
            *(self.healthy, self.duplicate, self.cordoned),
            *(self.slots, self.cores, self.memory_mib),
            *(self.profiles, self.parts),
        )


def refusal_of_facts(facts: Facts, request: RequestDemand) -> Reason | None:
    """Checks 1 to 3: whether a device is in order and of the kind asked for."""
    if facts.duplicate:  # ours, before HAMi's first: the device's place is unknown
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

    `device_policies` are for its devices, `node_policy` for its place among nodes; a claim's come
    before both. `labelled_policies` are of ACK's labels, for pods in ACK's words.
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
    """What was found out of devices by their state alone, for each of many questions.

    Args:
        questions: When there are more of them, the one that was asked first is forgotten. (Not the
            one that was asked least lately, which would cost every look.)
        answers: When there are more to one, those to it are.
    """

    def __init__(self, *, questions: int = _QUESTIONS_KEPT, answers: int = _ANSWERS_KEPT) -> None:
        self._questions = questions
        self._answers = answers
        self._known: dict[Hashable, dict[State, Answer]] = {}

    def of(self, question: Hashable) -> dict[State, Answer]:
        """What is known, by state; to be filled."""
        known = self._known.setdefault(question, {})
        if len(self._known) > self._questions:
            del self._known[next(iter(self._known))]
        if len(known) > self._answers:
            known.clear()
        return known

    def forget(self) -> None:
        """States have other names from now on."""
        self._known.clear()


class Conditions:
    """Gives out the numbers.

    A device's *facts* are all that it is apart from links, place and use; a *kind* is facts and, in
    MIG mode, the slices in use; a *condition* is a kind and the amounts in use.

    Attributes:
        facts: All facts, by number.
        right_kinds: By request: whether devices of a kind pass the checks of what a device is.
        in_parts: By request for a part: what it means on devices with the same facts.
        fitting: By request: whether devices in a condition pass the checks that hold for all of
            them.
        scores: By request and weights: the scores of devices in a condition.
        are_too_many: Most of the conditions are those of long ago: `forget` them.
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
        """The number of what a device is."""
        number = self._facts.get(facts)
        if number is None:
            number = self._facts[facts] = len(self.facts)
            self.facts.append(facts)
        return number

    def kind(self, facts: int, slices: int) -> int:
        """The number of a kind.

        Args:
            facts: The number of what the device is.
            slices: Those in use, if it is in MIG mode: what is left of it is another kind of
            device.
        """
        key = (facts, slices)
        return self._kinds.setdefault(key, len(self._kinds))

    def condition(self, kind: int, slots: int, cores: int, memory: int) -> int:
        """The number of a condition."""
        key = (kind, slots, cores, memory)
        number = self._conditions.get(key)
        if number is None:
            number = self._conditions[key] = len(self._conditions)
            self.are_too_many = number >= _CONDITIONS_KEPT
        return number

    def forget(self) -> None:
        """Begin to number conditions anew; all that are kept somewhere are void."""
        self._conditions.clear()
        self.are_too_many = False
        self.fitting.forget()
        self.scores.forget()
