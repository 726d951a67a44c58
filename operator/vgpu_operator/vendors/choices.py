"""Rules of vendors' tables that choose which devices go together (`Kind.choice`).

A rule gets the fitting devices of a node, in order of preference, and the number needed. It returns
the devices to take, in order of preference, or none if the rule cannot be met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from vgpu_api.vendors.model import ChoiceRule
from vgpu_operator.vendors.devices import Devices
from vgpu_operator.vendors.neighbours import slots_by_class

OF_ONE_TOO: frozenset[ChoiceRule] = frozenset({"wings", "runs", "smallestGroups", "fewestOnline"})
"""Rules that also apply to requests for a single device."""

Choice: TypeAlias = Callable[[Devices, Sequence[int], int], tuple[int, ...]]

_OF_A_MODULE = 2
_OF_A_SERVER = 8
_OF_A_WING = 4
_BEST_SIZES: Mapping[int, tuple[int, ...]] = MappingProxyType(
    {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}
)
"""By number requested, the numbers of fitting devices in a half from which to take them, best
first.
"""
_ALIGNED = frozenset({4, 8, 16})
"""The counts that can be allocated together on nodes without a ring."""
_LINKED: Mapping[int, tuple[frozenset[int], ...]] = MappingProxyType(
    {
        2: tuple(frozenset((at, at + _OF_A_WING)) for at in range(_OF_A_WING)),
        4: tuple(
            frozenset((one, other, one + _OF_A_WING, other + _OF_A_WING))
            for one, other in ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2))
        ),
    }
)
"""By number requested, the combinations of linked devices from both halves."""


def largest_groups(devices: Devices, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Take devices from the group with the most fitting ones, then the next, to use few groups.

    A group is a set of linked devices, for instance on one network. Ties between groups are broken
    by the order of their most preferred devices. If no devices are linked, only preference counts.
    Source: HAMi v2.10.0, Ascend 910, which breaks ties at random.
    """
    groups = _groups(devices, fitting)
    groups.sort(key=len, reverse=True)  # The sort is stable, so ties keep the order of preference.
    taken = [device for group in groups for device in group]
    return tuple(taken[:count])


def pairs(devices: Devices, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Take whole modules of two devices, and only if both devices of a module fit.

    A device's number on the node determines its module.

    Source: HAMi v2.10.0, Ascend 910C, which chooses between modules at random.
    """
    modules: dict[int, list[int]] = {}
    for device in fitting:
        modules.setdefault(devices.index[device] // _OF_A_MODULE, []).append(device)
    whole = [module for module in modules.values() if len(module) == _OF_A_MODULE]
    taken = [device for module in whole for device in module]
    return tuple(taken[:count]) if len(taken) >= count else ()


def wings(devices: Devices, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Take all devices from one half of a server of eight, or else linked devices from both halves.

    Links exist within a half. Prefer a half with exactly as many fitting devices as requested, then
    one with one or two more, so that the rest stays useful; for a single device, prefer a half with
    an odd number. Ties are broken by the most preferred device. Only 1, 2, 4 or 8 devices can be
    allocated together. Source: HAMi v2.10.0, Kunlunxin, which takes the least preferred devices of
    a half, and the first half in its list if there is a tie.
    """
    if count == _OF_A_SERVER:
        return tuple(fitting) if len(fitting) == count else ()
    halves: dict[int, list[int]] = {}
    for device in fitting:
        halves.setdefault(devices.index[device] // _OF_A_WING, []).append(device)
    for size in _BEST_SIZES.get(count, ()):
        for half in halves.values():
            if len(half) == size:
                return tuple(half[:count])
    device_at = {devices.index[device]: device for device in fitting}
    chosen = {device_at[number] for number in _across(frozenset(device_at), count)}
    return tuple(device for device in fitting if device in chosen)


def runs(devices: Devices, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Take the first run of consecutive numbers, or the last device where one is requested.

    Linked devices form a ring, in which every run is allowed. On other nodes only 4, 8 or 16
    devices can be allocated together, starting at a multiple of the count. Runs are taken from one
    end and single devices from the other, whatever the preference. Source: HAMi v2.10.0, AWS
    Neuron.
    """
    if count == 1:
        return (max(fitting, key=devices.index.__getitem__),)
    device_at = {devices.index[device]: device for device in fitting}
    in_ring = any(devices.links[device] for device in fitting)
    if not in_ring and count not in _ALIGNED:
        return ()
    for start in sorted(device_at):
        if in_ring or start % count == 0:
            run = [device_at[at] for at in range(start, start + count) if at in device_at]
            if len(run) == count:
                return tuple(run)
    return ()


def smallest_groups(devices: Devices, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Take all devices from the smallest sufficient group of linked ones, to spare large groups.

    If no group is large enough, start with the smallest groups, and take devices without links
    last. Ties are broken by the most preferred device. Source: HAMi v2.10.0, MetaX sGPU, which
    breaks ties at random.
    """
    if len(fitting) <= count:
        return tuple(fitting)
    # The sort is stable, so ties keep the order of preference.
    found = sorted(_groups(devices, fitting), key=len)
    linked = [group for group in found if devices.links[group[0]]]
    for group in linked:
        if len(group) >= count:
            return tuple(group[:count])
    alone = [device for device in fitting if not devices.links[device]]
    return tuple([device for group in linked for device in group] + alone)[:count]


def fewest_online(devices: Devices, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Take the devices with the fewest Online pods, then those with the fewest Offline pods.

    Devices with only Offline pods come last, because an Online pod would suspend those. Source:
    HAMi v2.10.0, MetaX sGPU.
    """

    def key(device: int) -> tuple[bool, int, int]:
        online, offline = slots_by_class(devices.slices_used[device])
        return online == 0 < offline, online, offline

    return tuple(sorted(fitting, key=key)[:count])


def _across(fitting: frozenset[int], count: int) -> frozenset[int]:
    """Return the numbers of linked devices from both halves, or none.

    If four are to be taken out of six, prefer a choice that leaves two linked devices.
    """
    found = [group for group in _LINKED.get(count, ()) if group <= fitting]
    if count == _OF_A_WING and len(fitting) == _OF_A_WING + 2:
        good = [group for group in found if _are_linked(fitting - group)]
        found = good or found[-1:]
    return found[0] if found else frozenset()


def _are_linked(two: frozenset[int]) -> bool:
    first, second = sorted(two)
    return second - first == _OF_A_WING or first // _OF_A_WING == second // _OF_A_WING


def _groups(devices: Devices, fitting: Sequence[int]) -> list[list[int]]:
    """Return the groups of linked devices, in the order of their most preferred devices."""
    found: list[list[int]] = []
    for device in fitting:
        linked = devices.links[device]
        home = next((group for group in found if devices.uuid[group[0]] in linked), None)
        if home is None:
            found.append([device])
        else:
            home.append(device)
    return found


CHOICES: Mapping[ChoiceRule, Choice] = MappingProxyType(
    {
        "largestGroups": largest_groups,
        "pairs": pairs,
        "wings": wings,
        "runs": runs,
        "smallestGroups": smallest_groups,
        "fewestOnline": fewest_online,
    }
)
