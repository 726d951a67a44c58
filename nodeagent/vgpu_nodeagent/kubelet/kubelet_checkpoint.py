"""Reads the kubelet's checkpoint, the only record that maps containers to their allocations.

`kubelet_internal_checkpoint` holds, per pod UID, container and resource, the device ids and our
answer to Allocate, and so the name of our slot allocation. The kubelet writes it before it starts
the container. It is an internal file, so an unknown format is refused and never interpreted.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from google.protobuf.message import DecodeError
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.kubelet.api import deviceplugin_pb2 as dp
from vgpu_nodeagent.state.cdi_device import allocation_of


@dataclass(frozen=True, slots=True)
class KubeletEntry:
    """The devices of one resource that the kubelet gave to one container.

    Attributes:
        slot_allocation: The name in our response to Allocate; empty if the response has none.
    """

    pod_uid: str
    container: str
    resource: str
    slot_ids: frozenset[str]
    slot_allocation: str


def _ids(value: Any) -> Any:
    """Return the device ids; some kubelet versions write a flat list, some a list per NUMA node."""
    if isinstance(value, dict):
        return [device for devices in value.values() for device in devices]
    return value


class _Entry(BaseModel):
    pod_uid: str = Field(alias="PodUID", min_length=1)
    container_name: str = Field(alias="ContainerName", min_length=1)
    resource_name: str = Field(alias="ResourceName", min_length=1)
    device_ids: Annotated[list[str], BeforeValidator(_ids)] = Field(alias="DeviceIDs")
    alloc_resp: str | None = Field(alias="AllocResp")


class _Data(BaseModel):
    entries: list[_Entry] | None = Field(alias="PodDeviceEntries")


class _CheckpointDocument(BaseModel):
    data: _Data = Field(alias="Data")


def read_kubelet_checkpoint(path: Path, *, resource: str) -> tuple[KubeletEntry, ...]:
    """Return the kubelet's entries for our resource; none if it has not written the file yet.

    Raises:
        KubeletUnavailable: The file cannot be read, or has an unknown format.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KubeletUnavailable(f"kubelet checkpoint {path}: {error.strerror}") from error
    try:
        document = _CheckpointDocument.model_validate(json.loads(content))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise KubeletUnavailable(
            f"kubelet checkpoint {path}: field {field}: {first['msg']}"
        ) from error
    except ValueError as error:
        raise KubeletUnavailable(f"kubelet checkpoint {path} is not JSON: {error}") from error
    return tuple(
        _entry(path, entry)
        for entry in document.data.entries or ()
        if entry.resource_name == resource
    )


def _entry(path: Path, entry: _Entry) -> KubeletEntry:
    try:
        answer = dp.ContainerAllocateResponse.FromString(
            base64.b64decode(entry.alloc_resp or "", validate=True)
        )
    except (binascii.Error, DecodeError) as error:
        raise KubeletUnavailable(
            f"kubelet checkpoint {path}: AllocResp of container {entry.container_name}: {error}"
        ) from error
    slot_allocations = [
        name for d in answer.cdi_devices if (name := allocation_of(d.name)) is not None
    ]
    if len(slot_allocations) > 1:
        raise KubeletUnavailable(
            f"kubelet checkpoint {path}: container {entry.container_name} has "
            f"{len(slot_allocations)} slot allocations"
        )
    return KubeletEntry(
        pod_uid=entry.pod_uid,
        container=entry.container_name,
        resource=entry.resource_name,
        slot_ids=frozenset(entry.device_ids),
        slot_allocation=slot_allocations[0] if slot_allocations else "",
    )
