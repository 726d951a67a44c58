"""What counts before a node's use, where a vendor's table has that: the greatest is the best.

Each gets a node as it is, and the devices that a claim would get there. Source: HAMi v2.10.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from vgpu_api.vendors.model import NodeRule
from vgpu_operator.demand import ALL_CORES
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.plan import Grant
from vgpu_operator.vendors.neighbours import slots_by_class

Rule: TypeAlias = Callable[[Columns, int, Sequence[Grant]], int]

_OFFLINE_ALONE = 100
_ONLINE = 20
_OFFLINE = 2
_OF_A_LINK = 10
_OF_A_LINK_GIVEN = 100


def fewest_online(columns: Columns, node: int, grants: Sequence[Grant]) -> int:
    """Minus what Online pods on the devices, and Offline ones that would be suspended, count."""
    total = 0
    for device in {columns.number_of(grant.device) for grant in grants if grant.neighbours}:
        online, offline = slots_by_class(columns.slices_used[device])
        if online == 0:
            total -= _OFFLINE_ALONE * offline
        else:
            total -= _ONLINE * online + _OFFLINE * offline
    return total


def links_kept(columns: Columns, node: int, grants: Sequence[Grant]) -> int:
    """What links between the devices given count, less those that are cut off from free ones."""
    given = {
        columns.number_of(grant.device)
        for grant in grants
        if grant.neighbours and grant.cores >= ALL_CORES
    }
    free = {device for device in columns.node_devices[node] if not columns.slots_used[device]}
    inside, left = _links(columns, given), _links(columns, free - given)
    lost = _links(columns, free) - inside - left
    return _OF_A_LINK_GIVEN * inside - _OF_A_LINK * lost


def _links(columns: Columns, devices: set[int]) -> int:
    """Pairs of them that are linked."""
    uuids = {columns.uuid[device] for device in devices}
    ends = sum(len(uuids.intersection(columns.links[device])) for device in devices)
    return ends // 2


NODE_RULES: Mapping[NodeRule, Rule] = MappingProxyType(
    {"fewestOnline": fewest_online, "linksKept": links_kept}
)
