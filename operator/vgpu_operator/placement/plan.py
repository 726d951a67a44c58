"""The outcome of a decision: a node with devices for every request, or reasons."""

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

    Not frozen at run time, because creation would take several times as long; `Final` makes the
    type checker refuse assignments.

    Attributes:
        request: The name of the request.
        device: The name of the GPUDevice.
        uuid: The device's UUID.
        index: The device's index on the node.
        memory_mib: The memory in MiB.
        cores: The compute in percent; 0 for no reservation.
        instance: The MIG instance, on a device in MIG mode.
        of_mib: The total memory of the device if the request is a percentage of it, else 0.
        core_ids: The numbers of the granted cores, for vendors that allocate cores by number.
        neighbours: The request's marks (`vendors.neighbours`).
        part: The name of the part, if the device is allocated in parts.
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
        """Return the granted slices or numbered cores, one bit each, or the request's marks."""
        if self.instance is not None:
            return self.instance.slices
        return bits_of(self.core_ids) if self.core_ids else self.neighbours

    @property
    def mig(self) -> MigAllocation | None:
        """Return the instance in the form of the claim's status."""
        if self.instance is None:
            return None
        instance = self.instance
        return MigAllocation(profile=instance.profile, start=instance.start, size=instance.size)


Refused: TypeAlias = tuple[Tally, Sequence[str]]
"""Reasons and the names of the nodes with these reasons. Several groups may have equal reasons."""


class Plan:
    """A node and grants in the order of the requests, or a refusal.

    Args:
        node: The node's name, or None for a refusal.
        grants: The grants on that node.
        refusals: The reasons of every node if the claim fits nowhere, or a function that finds
            them. It is called once, when they are first read, because most claims are decided again
            before that.

    Attributes:
        refused: True if the claim fits nowhere now.
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

    __hash__ = None  # type: ignore[assignment]  # reasons may not be computed yet

    @property
    def groups(self) -> Sequence[Refused]:
        """Return the reasons and their nodes, computed from the columns at the first access.

        Thousands of nodes have few different reasons, so a text made from groups is far cheaper.
        """
        if callable(self._refusals):
            self._refusals = self._refusals()
        return self._refusals

    @property
    def refusals(self) -> Mapping[str, Tally]:
        """Return the reasons of each node."""
        if self._by_node is None:
            found: dict[str, Tally] = {}
            for tally, nodes in self.groups:
                found.update(dict.fromkeys(nodes, tally))
            self._by_node = found
        return self._by_node

    @property
    def reason(self) -> Reason:
        """Return the reason that blocks the claim now (`vgpu_api.reasons.CURES`)."""
        return stopping(*_summed(self.groups)) or Reason.NO_GPU_NODES

    @property
    def text(self) -> str:
        """Return the refusal as text, for a condition, an event or the response to Filter.

        The format is `count/total Reason`, sorted and joined by `, `. The total of device reasons
        is the number of devices on nodes with such reasons, that of node reasons all nodes.
        """
        devices, nodes = _summed(self.groups)
        text = ", ".join(sorted(part for part in (*_parts(devices), *_parts(nodes))))
        return text or Reason.NO_GPU_NODES.value

    def allocation(self) -> Allocation:
        """Return the plan in the form of the claim's status, without id, time and node UID.

        Raises:
            ValueError: The plan is a refusal.
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
    """Group the nodes that have the identical tally object."""
    groups: dict[int, tuple[Tally, list[str]]] = {}
    for node, tally in refusals.items():
        groups.setdefault(id(tally), (tally, []))[1].append(node)
    return list(groups.values())


def in_words(refusals: Mapping[str, Tally]) -> dict[str, str]:
    """Return each node's reasons as text. Nodes with the same tally share one string."""
    said: dict[str, str] = {}
    for tally, nodes in alike(refusals):
        said.update(dict.fromkeys(nodes, str(tally)))
    return said


def _parts(tally: Tally) -> list[str]:
    return str(tally).split(", ") if tally else []


def _summed(groups: Sequence[Refused]) -> tuple[Tally, Tally]:
    """Sum up the counts of each reason, separately for devices and for nodes."""
    of_devices: list[tuple[Tally, int]] = []
    of_nodes: list[tuple[Tally, int]] = []
    for tally, nodes in groups:
        into = of_nodes if OF_A_NODE.issuperset(tally.counts) else of_devices
        into.append((tally, len(nodes)))
    total = sum(len(nodes) for _, nodes in groups)
    return sum_up(of_devices), Tally(sum_up(of_nodes).counts, total)
