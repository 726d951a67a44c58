"""Rules of vendors' tables that rank nodes before their usage is compared (`Kind.neighbours`).

A rule gets a node in its current state and the devices that a claim would get there, and returns a
score. The highest score is the best. Source: HAMi v2.10.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from vgpu_api.vendors.model import NodeRule
from vgpu_operator.vendors.devices import Devices, Granted
from vgpu_operator.vendors.neighbours import slots_by_class

Rule: TypeAlias = Callable[[Devices, int, Sequence[Granted]], int]

_ALL_CORES = 100
"""The whole compute of a device, in percent."""
# The weights are HAMi's.
_OFFLINE_ALONE = 100
_ONLINE = 20
_OFFLINE = 2
_LINK_CUT = 10
_LINK_GIVEN = 100


def fewest_online(devices: Devices, node: int, grants: Sequence[Granted]) -> int:
    """Prefer devices with few Online pods, and avoid devices with only Offline pods.

    An Online pod would suspend the Offline pods on its device.
    """
    score = 0
    for device in {devices.number_of(grant.device) for grant in grants if grant.neighbours}:
        online, offline = slots_by_class(devices.slices_used[device])
        if online == 0:
            score -= _OFFLINE_ALONE * offline
        else:
            score -= _ONLINE * online + _OFFLINE * offline
    return score


def links_kept(devices: Devices, node: int, grants: Sequence[Granted]) -> int:
    """Prefer links among the allocated devices, and avoid cutting links between free ones."""
    given = {
        devices.number_of(grant.device)
        for grant in grants
        if grant.neighbours and grant.cores >= _ALL_CORES
    }
    free = {each for each in devices.node_devices[node] if not devices.slots_used[each]}
    inside, left = _links(devices, given), _links(devices, free - given)
    cut = _links(devices, free) - inside - left
    return _LINK_GIVEN * inside - _LINK_CUT * cut


def _links(devices: Devices, chosen: set[int]) -> int:
    """Count the linked pairs among the chosen devices."""
    uuids = {devices.uuid[each] for each in chosen}
    ends = sum(len(uuids.intersection(devices.links[each])) for each in chosen)
    return ends // 2


NODE_RULES: Mapping[NodeRule, Rule] = MappingProxyType(
    {"fewestOnline": fewest_online, "linksKept": links_kept}
)
"""The rules by their names in tables."""
