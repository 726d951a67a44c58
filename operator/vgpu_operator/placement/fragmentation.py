"""Scores nodes and devices by fragmentation: the idle share that typical requests cannot use.

This is fragmentation gradient descent (Weng et al., USENIX ATC '23). F(node) is the idle share that
a typical request cannot use, weighted by the request's frequency: the whole idle share if the node
cannot run the request, else the share on devices with less left than it needs. A claim goes where F
rises least. A device's idle share is the free share of memory or of compute, whichever is scarcer.

A node cannot run requests of a type whose pods need more CPU than it has free. Free CPU is measured
in levels, because only the amounts that types request make a difference.

If all types request one device, F is a sum over devices, and a device's part depends only on its
condition and the CPU level, so it is cached by these. Types with several devices depend on the
whole node.
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
"""The idle share of an empty device."""


@lru_cache(maxsize=1 << 16)
def score_of_rise(rise: float) -> int:
    """Convert a rise of F to a score from 0 (worst) to 100, in whole steps as published."""
    if rise == math.inf:
        return -1
    exact = round(rise, 6)  # rounding errors of sums must not decide between equal nodes
    return int(FULL_SCORE / (1.0 + math.exp(exact / _UNIT)))


def fragmentation(columns: Columns, node: int, *, cpu_milli: int = 0) -> float:
    """Return the current F of a node, in thousandths of a device.

    Args:
        columns: The state of all devices.
        node: The number of the node.
        cpu_milli: An amount to subtract from its free CPU.
    """
    return _at_level(columns, node, _level(columns, node, cpu_milli))


def rises_on(columns: Columns, devices: Sequence[int], request: RequestDemand) -> list[float]:
    """Return how much F rises with the request on each device; infinite where it does not fit.

    All devices must be on the same node.
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
    """Return the function that computes the negated score of a node's best device.

    The function returns None if the request fits on no device. The request must be for one device,
    and only the device's state may determine if it fits.
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
    """Return the level of a node's free CPU after an amount is subtracted."""
    return columns.mix.level(columns.node_cpu_free[node] - cpu_milli)


def _at_level(columns: Columns, node: int, level: int) -> float:
    views = [_view(columns, device, level) for device in columns.node_devices[node]]
    return sum(view.useless for view in views) - _used_by_several(columns, views)


def _rise_by_cpu(columns: Columns, node: int, level: int) -> float:
    """Return how much F rises when the free CPU falls to a level and the devices do not change."""
    if not columns.mix.knows_cpu:
        return 0.0
    now = _level(columns, node, 0)
    if level == now:
        return 0.0
    return _at_level(columns, node, level) - _at_level(columns, node, now)


def _rise_at_level(columns: Columns, device: int, request: RequestDemand, level: int) -> float:
    """Return how much F rises with the request on a device, at the same level of free CPU."""
    before = _view(columns, device, level)
    taken = take(columns, device, request)
    after = _view(columns, device, level)
    give_back(columns, (taken,))
    rise = after.useless - before.useless
    if not before.several:  # if none fit before, none fit afterwards with less free
        return rise
    devices = columns.node_devices[columns.node_of[device]]
    others = [_view(columns, other, level) for other in devices if other != device]
    then, now = [*others, after], [*others, before]
    return rise - _used_by_several(columns, then) + _used_by_several(columns, now)


def _rise_of_device(columns: Columns, device: int, request: RequestDemand, level: int) -> float:
    """Like `_rise_at_level`, but infinite if the request does not fit, and cached if possible."""
    state, rises = _state(columns, device, level), columns.mix.rises.of(request)
    rise = rises.get(state)
    if rise is None:
        rise = math.inf
        alone = not _view(columns, device, level).several
        if passing(columns, (device,), request, ()):
            rise = _rise_at_level(columns, device, request, level)
        if alone:  # then the other devices on the node do not matter
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
    """Return the idle share, weighted by frequency, that multi-device request types can use.

    A type counts only if enough devices fit.
    """
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
