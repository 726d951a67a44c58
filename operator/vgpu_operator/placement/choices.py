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

Choice: TypeAlias = Callable[[Columns, Sequence[int], int], tuple[int, ...]]

_OF_A_MODULE = 2


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
    {"largestGroups": largest_groups, "pairs": pairs}
)
