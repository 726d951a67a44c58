"""Finds containers with a device count of 0 that still have other GPU amounts.

Charts write `nvidia.com/gpu: 0` and leave the other amounts in place. Such a container requests
nothing, but kube-scheduler would look for a node with its GPU memory and find none. Under HAMi it
runs without a device, because HAMi's scheduler ignores those amounts.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container
from vgpu_api.vendors import kinds
from vgpu_operator.dialects import hami, volcano
from vgpu_operator.dialects.containers import is_given


def amounts_without_devices(
    container: Container, config: ClusterConfig
) -> tuple[str, tuple[str, ...]] | None:
    """Return the count of 0 and the amounts next to it, or None if there is no such count.

    Alibaba's dialect has no such count; there, memory without compute or the reverse is refused.
    """
    resources = container.resources
    extended = (name for name in (*resources.limits, *resources.requests) if "/" in name)
    if all(is_given(container, name) for name in extended):
        return None  # nearly all containers have no count of 0
    off = [
        (counts, amounts)
        for counts, amounts in _words(config)
        if any(container.requested(name) is not None for name in counts)
        and not any(is_given(container, name) for name in counts)
    ]
    words = [
        name for _, amounts in off for name in amounts if container.requested(name) is not None
    ]
    if not words:
        return None
    count = next(name for name in off[0][0] if container.requested(name) is not None)
    return count, tuple(words)


def _words(config: ClusterConfig) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield count resources, and the amounts that are meaningless without one of them."""
    for names in (hami.resource_names(config), volcano.resource_names(config)):
        yield names[:1], names[1:]
    for kind in kinds():
        if kind.name not in config.vendors.leave_alone:
            counts = tuple(kind.requested_by)
            yield counts, tuple(name for name in kind.resources if name not in counts)
