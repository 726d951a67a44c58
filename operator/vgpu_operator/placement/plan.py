"""A decision: one node and the devices of every request, or the reasons why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from vgpu_api.quantity import format_mib
from vgpu_api.reasons import OF_A_NODE, Reason, Tally, stopping, sum_up
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_operator.placement.mig_geometry import Instance, bits_of


@dataclass(slots=True, unsafe_hash=True)
class Grant:
    """A part of one device for one request.

    Not frozen, which would make it several times as dear to make; the types keep it as it is.
    `device` is the GPUDevice's name, `memory_mib` is in MiB, `cores` in percent (0: no
    reservation); `instance` is the part of a device in MIG mode that it is. `of_mib` is all memory
    of the device where a percentage of it is asked, else 0. `core_ids` are cores of the device that
    are its own, where they are given by number; `neighbours` is the request's;
    `part` is the name of the part that it is, of a device that is given in parts.
    """

    request: Final[str]
    device: Final[str]
    uuid: Final[str]
    index: Final[int]
    memory_mib: Final[int]
    cores: Final[int]
    instance: Final[Instance | None] = None
    of_mib: Final[int] = 0
    core_ids: Final[tuple[int, ...]] = ()
    neighbours: Final[int] = 0
    part: Final[str] = ""

    @property
    def slices(self) -> int:
        """What it takes of slices or numbered cores, one bit each, or is to its neighbours."""
        if self.instance is not None:
            return self.instance.slices
        return bits_of(self.core_ids) if self.core_ids else self.neighbours

    @property
    def mig(self) -> MigAllocation | None:
        """The instance as it is written into the claim's status."""
        if self.instance is None:
            return None
        instance = self.instance
        return MigAllocation(profile=instance.profile, start=instance.start, size=instance.size)


Refused: TypeAlias = tuple[Tally, Sequence[str]]
"""Reasons, and the names of nodes that have just these. Several may have equal reasons."""


class Plan:
    """What was decided: a node and grants in the order of the requests, or neither.

    Args:
        node: None: there is no place now.
        grants: What the claim gets there.
        refusals: The reasons of every node when there is no place; or what finds them out, called
            once when they are read first: most refusals are of claims that are asked again before
            that. A grant has none.

    Attributes:
        refused: There is no place now.
    """

    __slots__ = ("_by_node", "_refusals", "grants", "node", "refused")

    def __init__(
        self,
        node: str | None,
        grants: tuple[Grant, ...] = (),
        refusals: Mapping[str, Tally] | Callable[[], Sequence[Refused]] = MappingProxyType({}),
    ) -> None:
        self.node: Final = node
        self.refused: Final = node is None
        self.grants: Final = grants
        self._refusals: Callable[[], Sequence[Refused]] | Sequence[Refused] = (
            refusals if callable(refusals) else alike(refusals)
        )
        self._by_node: Mapping[str, Tally] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and (self.node, self.grants, self.refusals) == (
            *(other.node, other.grants),
            other.refusals,
        )

    __hash__ = None  # type: ignore[assignment]  # its reasons are not read yet

    @property
    def groups(self) -> Sequence[Refused]:
        """The reasons and the nodes that have them, of the columns as they are when read first.

        Nodes of a fleet have few different reasons: a text by groups costs far less.
        """
        if callable(self._refusals):
            self._refusals = self._refusals()
        return self._refusals

    @property
    def refusals(self) -> Mapping[str, Tally]:
        """The reasons by node."""
        if self._by_node is None:
            found: dict[str, Tally] = {}
            for tally, nodes in self.groups:
                found.update(dict.fromkeys(nodes, tally))
            self._by_node = found
        return self._by_node

    @property
    def reason(self) -> Reason:
        """Return the reason that stops the claim now (`vgpu_api.reasons.CURES`)."""
        return stopping(*_summed(self.groups)) or Reason.NO_GPU_NODES

    @property
    def text(self) -> str:
        """A refusal in words, for a condition, an event or a filter's answer.

        The reasons of several nodes as one text: `count/total Reason`, sorted, joined by `, `.
        Reasons of devices are counted out of the devices of the nodes that have such reasons,
        reasons of nodes out of all the nodes.
        """
        devices, nodes = _summed(self.groups)
        text = ", ".join(sorted(part for part in (*_parts(devices), *_parts(nodes))))
        return text or Reason.NO_GPU_NODES.value

    def allocation(self) -> Allocation:
        """The plan as it is written into the claim's status, but for its id, time and node's UID.

        Raises:
            ValueError: the plan is a refusal.
        """
        if self.node is None:
            raise ValueError("a refusal allocates nothing")
        return Allocation(
            node_name=self.node,
            devices=[
                AllocatedDevice(
                    request=grant.request,
                    name=grant.device,
                    uuid=grant.uuid,
                    index=grant.index,
                    memory=format_mib(grant.memory_mib),
                    cores=grant.cores,
                    mig=grant.mig,
                    device_memory=format_mib(grant.of_mib) if grant.of_mib else None,
                    core_ids=list(grant.core_ids) or None,
                    part=grant.part or None,
                )
                for grant in self.grants
            ],
        )


def alike(refusals: Mapping[str, Tally]) -> list[Refused]:
    """Nodes by their reasons; those that have the very same tally are together."""
    groups: dict[int, tuple[Tally, list[str]]] = {}
    for node, tally in refusals.items():
        groups.setdefault(id(tally), (tally, []))[1].append(node)
    return list(groups.values())


def in_words(refusals: Mapping[str, Tally]) -> dict[str, str]:
    """Each node's reasons. Nodes with the same tally share one text."""
    said: dict[str, str] = {}
    for tally, nodes in alike(refusals):
        said.update(dict.fromkeys(nodes, str(tally)))
    return said


def _parts(tally: Tally) -> list[str]:
    return str(tally).split(", ") if tally else []


def _summed(groups: Sequence[Refused]) -> tuple[Tally, Tally]:
    """Of devices and of nodes."""
    of_devices: list[tuple[Tally, int]] = []
    of_nodes: list[tuple[Tally, int]] = []
    for tally, nodes in groups:
        into = of_nodes if OF_A_NODE.issuperset(tally.counts) else of_devices
        into.append((tally, len(nodes)))
    total = sum(len(nodes) for _, nodes in groups)
    return sum_up(of_devices), Tally(sum_up(of_nodes).counts, total)
