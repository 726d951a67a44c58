"""The CDI device names of slot allocations and shares.

A slot allocation is what the kubelet gets in the response to Allocate, a share what it gets when a
ResourceClaim is prepared, each for one container. The kubelet keeps the name in a checkpoint, and
the container runtime looks up its spec file.
"""

from __future__ import annotations

from vgpu_api.dra import CDI_KIND, share_id

SLOT_KIND = "vgpu.dev/slot"
KINDS = (SLOT_KIND, CDI_KIND)
_SHARE = "share-"


def share_name(allocation_id: str, container: str) -> str:
    """Return the name of a container's share: of its CDI device, its page and its folder.

    It has a fixed length, because a page has room for 63 characters and the names of containers
    alone may be as long.
    """
    return f"{_SHARE}{share_id(allocation_id, container)}"


def is_share(name: str) -> bool:
    """Return True for the name of a share; slot allocations begin with the name of a slot."""
    return name.startswith(_SHARE)


def kind_of(name: str) -> str:
    """Return the CDI kind of a slot allocation or share."""
    return CDI_KIND if is_share(name) else SLOT_KIND


def device_name(name: str) -> str:
    """Return the fully qualified CDI device name of a slot allocation or share."""
    return f"{kind_of(name)}={name}"


def allocation_of(device: str) -> str | None:
    """Return the slot allocation of a fully qualified CDI device name; None if it names none."""
    kind, _, name = device.partition("=")
    return name if kind == SLOT_KIND and name else None
