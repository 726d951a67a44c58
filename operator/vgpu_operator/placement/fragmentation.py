"""How much idle compute of a node is of no use to the requests that usually come.

Fragmentation gradient descent (Weng et al., USENIX ATC '23): F(node) is the idle share that a
typical request cannot use, weighted by how frequent the request is: all that is idle if the node
cannot run it, else what is idle on devices with less left than it needs. A claim goes where F rises
least. A device's idle share is what is left of the scarcer of memory and compute.

A node without the CPU that a type's pods ask for runs none of them. What is free of it counts in
levels: only the amounts that types ask for make a difference.

Types for one device add up device by device, so what F needs of a device depends on its condition
and the level alone and is remembered by them; types for several devices need a look at the whole
node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.fit_device import give_back, passing, take
from vgpu_operator.placement.part_requests import on_device
from vgpu_operator.placement.target_workload import DeviceState, View

FULL_SCORE = 100
_UNIT = 1000.0
"""The share of a whole device."""


@lru_cache(maxsize=1 << 16)
def score_of_rise(rise: float) -> int:
    """A rise of F as a score, 0 to 100, more is better: as published, in whole steps."""
    if rise == math.inf:
        return -1
    exact = round(rise, 6)  # rounding of sums must not order equal nodes
    return int(FULL_SCORE / (1.0 + math.exp(exact / _UNIT)))


def fragmentation(columns: Columns, node: int, *, cpu_milli: int = 0) -> float:
    """F of a node as its devices are now, in thousandths of a device.

    Args:
        columns: The state of all devices.
        node: Which.
        cpu_milli: To be taken off what is free of its CPU.
    """
    return _at_level(columns, node, _level(columns, node, cpu_milli))


def rises_on(columns: Columns, devices: Sequence[int], request: RequestDemand) -> list[float]:
    """How much F rises with one more request on each device; infinitely where it does not fit.

    The devices are of one node.
    """
    if columns.mix.knows_cpu and devices:
        node = columns.node_of[devices[0]]
        level = _level(columns, node, request.cpu_milli)
        rise = _rise_by_cpu(columns, node, level)
        return [rise + _rise_of_device(columns, device, request, level) for device in devices]
    known, condition = columns.mix.rises.of(request), columns.condition
    try:
        return [known[condition[device]] for device in devices]
    except KeyError:
        return [_rise_of_device(columns, device, request, 0) for device in devices]


def best_keys(columns: Columns, request: RequestDemand) -> Callable[[int], float | None]:
    """The score function, negated, of the device of a node where F rises least.

    None if the request fits on none. For a request for one device, which `passing` would let on by
    the device's state alone.
    """
    devices_of = columns.node_devices
    if columns.mix.knows_cpu:

        def with_cpu(node: int) -> float | None:
            level = _level(columns, node, request.cpu_milli)
            least = min(
                _rise_of_device(columns, device, request, level) for device in devices_of[node]
            )
            if least == math.inf:
                return None
            return -score_of_rise(least + _rise_by_cpu(columns, node, level))

        return with_cpu

    known = columns.mix.rises.of(request).__getitem__
    condition = columns.condition.__getitem__

    def without_cpu(node: int) -> float | None:
        devices = devices_of[node]
        try:
            least = min(map(known, map(condition, devices)))
        except KeyError:
            least = min(_rise_of_device(columns, device, request, 0) for device in devices)
        return None if least == math.inf else -score_of_rise(least)

    return without_cpu


def _level(columns: Columns, node: int, cpu_milli: int) -> int:
    """The level of a node's free CPU with that much less of it."""
    return columns.mix.level(columns.node_cpu_free[node] - cpu_milli)


def _at_level(columns: Columns, node: int, level: int) -> float:
    views = [_view(columns, device, level) for device in columns.node_devices[node]]
    return sum(view.useless for view in views) - _used_by_several(columns, views)


def _rise_by_cpu(columns: Columns, node: int, level: int) -> float:
    """How much F rises by the free CPU's going down to a level, its devices as they are."""
    if not columns.mix.knows_cpu:
        return 0.0
    now = _level(columns, node, 0)
    if level == now:
        return 0.0
    return _at_level(columns, node, level) - _at_level(columns, node, now)


def _rise_at_level(columns: Columns, device: int, request: RequestDemand, level: int) -> float:
    """How much F rises by the request's share of a device, the level of free CPU being the same."""
    before = _view(columns, device, level)
    taken = take(columns, device, request)
    after = _view(columns, device, level)
    give_back(columns, (taken,))
    rise = after.useless - before.useless
    if not before.several:  # and so neither after: there is less room
        return rise
    devices = columns.node_devices[columns.node_of[device]]
    others = [_view(columns, other, level) for other in devices if other != device]
    then, now = [*others, after], [*others, before]
    return rise - _used_by_several(columns, then) + _used_by_several(columns, now)


def _rise_of_device(columns: Columns, device: int, request: RequestDemand, level: int) -> float:
    """As `_rise_at_level`, infinite if the request does not fit; kept if that is permanent."""
    state, rises = _state(columns, device, level), columns.mix.rises.of(request)
    rise = rises.get(state)
    if rise is None:
        rise = math.inf
        alone = not _view(columns, device, level).several
        if passing(columns, (device,), request, ()):
            rise = _rise_at_level(columns, device, request, level)
        if alone:  # the node's other devices do not matter
            rises[state] = rise
    return rise


def _view(columns: Columns, device: int, level: int) -> View:
    state, views = _state(columns, device, level), columns.mix.views
    view = views.get(state)
    if view is None:
        view = views[state] = _look_at(columns, device, level)
    return view


def _state(columns: Columns, device: int, level: int) -> DeviceState:
    return (level, columns.condition[device]) if level else columns.condition[device]


def _look_at(columns: Columns, device: int, level: int) -> View:
    idle = _idle(columns, device)
    weight = 0.0
    several: list[int] = []
    cpu_levels = columns.mix.cpu_levels
    for number, (frequency, type_) in enumerate(columns.mix.types):
        request = on_device(columns, device, type_)
        if request is None or cpu_levels[number] > level:
            continue
        if not passing(columns, (device,), request, ()):
            continue
        if request.count == 1:
            weight += frequency
        else:
            several.append(number)
    return View(idle, idle * (columns.mix.total - weight), tuple(several))


def _idle(columns: Columns, device: int) -> float:
    out_of_use = not columns.healthy[device] or columns.cordoned[device]
    if out_of_use or columns.slots_used[device] >= columns.slots[device]:
        return 0.0
    shares = [
        used / total
        for used, total in (
            (columns.cores_used[device], columns.cores[device]),
            (columns.memory_used[device], columns.memory[device]),
        )
        if total
    ]
    return max(0.0, _UNIT * (1.0 - max(shares, default=1.0)))


def _used_by_several(columns: Columns, views: Iterable[View]) -> float:
    """What types for several devices could use, where enough devices fit."""
    idle: dict[int, list[float]] = {}
    for view in views:
        for number in view.several:
            idle.setdefault(number, []).append(view.idle)
    total = 0.0
    for number, shares in idle.items():
        frequency, request = columns.mix.types[number]
        if len(shares) >= request.count:
            total += frequency * sum(shares)
    return total
