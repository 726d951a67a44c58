"""Which of several devices that fit go together: rules that a vendor's table names.

Each gets the devices that fit, the most wanted first, and gives those to take, the most wanted
first; none where no choice of its kind is large enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from vgpu_api.vendors.model import ChoiceRule
from vgpu_operator.placement.columns import Columns
from vgpu_operator.vendors.neighbours import slots_by_class

OF_ONE_TOO: frozenset[ChoiceRule] = frozenset({"wings", "runs", "smallestGroups", "fewestOnline"})
"""Rules that choose where one device is asked for, too."""

Choice: TypeAlias = Callable[[Columns, Sequence[int], int], tuple[int, ...]]

_OF_A_MODULE = 2
_OF_A_SERVER = 8
_OF_A_WING = 4
_BEST_SIZES: Mapping[int, tuple[int, ...]] = MappingProxyType(
    {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}
)
"""By number asked for: of how many devices that fit a half is taken, the best first."""
_ALIGNED = frozenset({4, 8, 16})
"""Numbers of devices that go together where they are not in a ring."""
_LINKED: Mapping[int, tuple[frozenset[int], ...]] = MappingProxyType(
    {
        2: tuple(frozenset((at, at + _OF_A_WING)) for at in range(_OF_A_WING)),
        4: tuple(
            frozenset((one, other, one + _OF_A_WING, other + _OF_A_WING))
            for one, other in ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2))
        ),
    }
)
"""By number asked for: devices of both halves that are linked with each other."""


def largest_groups(columns: Columns, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """From the group of which most fit, then from the next: few groups, and those filled.

    A group is linked devices, such as those of one network. Groups of one size come in the order of
    their most wanted devices. Where no device is linked to another, nothing but preference counts.
    Source: HAMi v2.10.0, Ascend 910; it decides between groups of one size at random.
    """
    groups = _groups(columns, fitting)
    groups.sort(key=len, reverse=True)  # stable: the order of their most wanted
    taken = [device for group in groups for device in group]
    return tuple(taken[:count])


def pairs(columns: Columns, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Whole modules of two: those of which both devices fit, by their numbers on the node.

    Source: HAMi v2.10.0, Ascend 910C; it decides between modules at random.
    """
    modules: dict[int, list[int]] = {}
    for device in fitting:
        modules.setdefault(columns.index[device] // _OF_A_MODULE, []).append(device)
    whole = [module for module in modules.values() if len(module) == _OF_A_MODULE]
    taken = [device for module in whole for device in module]
    return tuple(taken[:count]) if len(taken) >= count else ()


def wings(columns: Columns, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """All from one half of a server of eight, where its links are; else those linked across.

    The half of which just as many fit comes first, then that of which one or two more do, so that
    what is left is of use; for one device, a half of which an odd number fits. Halves of one size
    come in the order of their most wanted devices. Only 1, 2, 4 or 8 devices go together.
    Source: HAMi v2.10.0, Kunlunxin. It takes the least wanted of a half, and of halves of one size
    the first in its list.
    """
    if count == _OF_A_SERVER:
        return tuple(fitting) if len(fitting) == count else ()
    halves: dict[int, list[int]] = {}
    for device in fitting:
        halves.setdefault(columns.index[device] // _OF_A_WING, []).append(device)
    for size in _BEST_SIZES.get(count, ()):
        for half in halves.values():
            if len(half) == size:
                return tuple(half[:count])
    device_at = {columns.index[device]: device for device in fitting}
    chosen = {device_at[number] for number in _across(frozenset(device_at), count)}
    return tuple(device for device in fitting if device in chosen)


def runs(columns: Columns, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """The first devices that follow each other by their numbers; of one, the last.

    Where devices are linked, they are so in a ring, and any run serves. Elsewhere 4, 8 or 16 go
    together, from a number that is a multiple of that. So runs are taken from one end and parts of
    devices from the other, whatever the preference. Source: HAMi v2.10.0, AWS Neuron.
    """
    if count == 1:
        return (max(fitting, key=columns.index.__getitem__),)
    device_at = {columns.index[device]: device for device in fitting}
    in_ring = any(columns.links[device] for device in fitting)
    if not in_ring and count not in _ALIGNED:
        return ()
    for start in sorted(device_at):
        if in_ring or start % count == 0:
            run = [device_at[at] for at in range(start, start + count) if at in device_at]
            if len(run) == count:
                return tuple(run)
    return ()


def smallest_groups(columns: Columns, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """All from the smallest group of linked devices that is large enough, so that large ones stay.

    Where none is, from the smallest on; devices without a link come last. Groups of one size come
    in the order of their most wanted devices. Source: HAMi v2.10.0, MetaX sGPU; it decides between
    groups of one size at random.
    """
    if len(fitting) <= count:
        return tuple(fitting)
    found = sorted(_groups(columns, fitting), key=len)  # stable: the order of their most wanted
    linked = [group for group in found if columns.links[group[0]]]
    for group in linked:
        if len(group) >= count:
            return tuple(group[:count])
    alone = [device for device in fitting if not columns.links[device]]
    return tuple([device for group in linked for device in group] + alone)[:count]


def fewest_online(columns: Columns, fitting: Sequence[int], count: int) -> tuple[int, ...]:
    """Those that serve the fewest Online pods, then the fewest Offline ones.

    Devices that serve Offline pods alone come last: those would be suspended. Source: HAMi v2.10.0,
    MetaX sGPU.
    """

    def key(device: int) -> tuple[bool, int, int]:
        online, offline = slots_by_class(columns.slices_used[device])
        return online == 0 < offline, online, offline

    return tuple(sorted(fitting, key=key)[:count])


def _across(fitting: frozenset[int], count: int) -> frozenset[int]:
    """Devices of both halves that are linked, by their numbers; none if there are none.

    Of four out of six, those that leave two which are linked, if there are such.
    """
    found = [group for group in _LINKED.get(count, ()) if group <= fitting]
    if count == _OF_A_WING and len(fitting) == _OF_A_WING + 2:
        good = [group for group in found if _are_linked(fitting - group)]
        found = good or found[-1:]
    return found[0] if found else frozenset()


def _are_linked(two: frozenset[int]) -> bool:
    first, second = sorted(two)
    return second - first == _OF_A_WING or first // _OF_A_WING == second // _OF_A_WING


def _groups(columns: Columns, fitting: Sequence[int]) -> list[list[int]]:
    """The devices by what they are linked with, in the order of their most wanted."""
    found: list[list[int]] = []
    for device in fitting:
        linked = columns.links[device]
        home = next((group for group in found if columns.uuid[group[0]] in linked), None)
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
