"""Orders a node's devices by policy, with a table of sort keys.

Devices are taken from the end of a sorted list, as in HAMi v2.10, so the best device has the
greatest key. Sorting is stable, so ties keep the node's own order (index, then UUID).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from vgpu_api.v1alpha1.vgpuclaim import DevicePolicy
from vgpu_operator.demand import RequestDemand
from vgpu_operator.placement.columns import Columns
from vgpu_operator.placement.fragmentation import rises_on, score_of_rise
from vgpu_operator.placement.usage_scores import device_scores

Weights: TypeAlias = tuple[int, int, int]
Keys: TypeAlias = Sequence[Any]
"""A key for each device: a number, or a tuple of keys."""
Token: TypeAlias = Callable[[Columns, Sequence[int], RequestDemand, Weights], Keys]


def _fuller(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    return device_scores(columns, devices, request, weights)


def _emptier(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    return [-score for score in device_scores(columns, devices, request, weights)]


def _less_shared(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    used = columns.slots_used
    return [-used[device] for device in devices]


def _higher_numa(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    numa = columns.numa
    return [numa[device] for device in devices]


def _lower_numa(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    numa = columns.numa
    return [-numa[device] for device in devices]


def _less_memory_left(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    memory, used, memory_on = columns.memory, columns.memory_used, request.memory_on
    return [used[device] + memory_on(memory[device]) - memory[device] for device in devices]


def _fewer_cores_left(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    cores, used = columns.cores, columns.cores_used
    return [used[device] - cores[device] for device in devices]


def _lower_index(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    index = columns.index
    return [-index[device] for device in devices]


def _idle(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    """Prefer unused devices; otherwise like Spread."""
    used, emptier = columns.slots_used, _emptier(columns, devices, request, weights)
    return [(not used[device], key) for device, key in zip(devices, emptier, strict=True)]


def _less_fragmenting(
    columns: Columns, devices: Sequence[int], request: RequestDemand, weights: Weights
) -> Keys:
    """Prefer devices where fragmentation rises least. Devices that do not fit come last."""
    return [score_of_rise(rise) for rise in rises_on(columns, devices, request)]


_KEYS: Mapping[DevicePolicy, tuple[Token, ...]] = MappingProxyType(
    {
        "Binpack": (_fuller,),
        "Spread": (_emptier,),
        "NUMA": (_higher_numa,),
        "BestFit": (_less_memory_left, _fewer_cores_left, _lower_index),
        "IdleFirst": (_idle,),
        "Fragmentation": (_less_fragmenting, _lower_index),
    }
)
"""The policies that order devices. The others filter (Mutex) or choose among sets of devices
(NUMAFirst, Topology); a chain of only such policies orders like Spread."""

_SOLE: Mapping[DevicePolicy, tuple[Token, ...]] = MappingProxyType(
    {
        "Binpack": (_fuller, _higher_numa),
        "Spread": (_emptier, _higher_numa),
        "Mutex": (_less_shared, _higher_numa),
        "IdleFirst": (_idle, _higher_numa),
    }
)
_SOLE_ON_ONE_NUMA_NODE: Mapping[DevicePolicy, tuple[Token, ...]] = MappingProxyType(
    {
        "Binpack": (_lower_numa, _fuller),
        "Spread": (_higher_numa, _emptier),
        "Mutex": (_higher_numa, _less_shared),
    }
)


def in_order(
    columns: Columns,
    devices: Sequence[int],
    *,
    request: RequestDemand,
    policies: Sequence[DevicePolicy],
    one_numa_node: bool,
    weights: Weights,
) -> list[int]:
    """Sort `devices` (given in their node's order), least preferred first."""
    tokens = keys_of(tuple(policies), one_numa_node=one_numa_node)
    return _sorted(columns, devices, request=request, keys=tokens, weights=weights)


def preferred(
    columns: Columns,
    devices: Sequence[int],
    count: int,
    *,
    request: RequestDemand,
    keys: tuple[Token, ...],
    weights: Weights,
) -> tuple[int, ...]:
    """Return the `count` most preferred of `devices` (given in their node's order), best first."""
    if count > 1:
        ordered = _sorted(columns, devices, request=request, keys=keys, weights=weights)
        return tuple(reversed(ordered[-count:]))
    # A single device needs no sort: filter by one key after the other until one device is left.
    for key in keys:
        if len(devices) == 1:
            break
        values = key(columns, devices, request, weights)
        best = max(values)
        devices = [device for device, value in zip(devices, values, strict=True) if value == best]
    return (devices[-1],)  # of equal devices take the last, as if from the end of the sorted list


def _sorted(
    columns: Columns,
    devices: Sequence[int],
    *,
    request: RequestDemand,
    keys: tuple[Token, ...],
    weights: Weights,
) -> list[int]:
    parts = zip(*(key(columns, devices, request, weights) for key in keys), strict=True)
    key_of = dict(zip(devices, parts, strict=True))
    return sorted(devices, key=key_of.__getitem__)


@lru_cache(maxsize=1024)
def keys_of(policies: tuple[DevicePolicy, ...], *, one_numa_node: bool) -> tuple[Token, ...]:
    """Return the sort keys of policies, most significant first.

    A single policy breaks ties by NUMA node. A chain does not, even if only one of its policies
    orders devices.
    """
    chain = tuple(key for token in policies for key in _KEYS.get(token, ()))
    if not chain and policies != ("Mutex",):
        policies = ("Spread",)
    sole = _SOLE_ON_ONE_NUMA_NODE if one_numa_node else _SOLE
    if len(policies) == 1 and policies[0] in sole:
        return sole[policies[0]]
    return (_higher_numa, *chain) if one_numa_node else chain
