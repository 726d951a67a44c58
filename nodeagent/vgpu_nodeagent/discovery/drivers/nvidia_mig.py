"""Lists, makes and removes MIG instances of NVIDIA devices.

These functions run in the NVML thread of `nvidia.py`. An instance that we make is a GPU instance
with one compute instance that covers all of it. Making and removing take two steps each, and
complete what an earlier attempt left half done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import pynvml

from vgpu_nodeagent.discovery.drivers.base import InstanceProfile, MigInstance
from vgpu_nodeagent.discovery.drivers.nvml import optional, text
from vgpu_nodeagent.errors import InstanceInUse, InstanceLost, PlaceTaken

_ALL_CORES = 100


def profiles_of(device: Any) -> tuple[InstanceProfile, ...]:
    """Return the kinds of instances that a device in MIG mode can have."""
    infos = {_name(info): info for info in reversed(list(_infos(device)))}
    most = max((info.sliceCount for info in infos.values()), default=1)
    return tuple(
        InstanceProfile(
            name=name,
            memory_mib=int(info.memorySizeMB),
            cores=_ALL_CORES * info.sliceCount // most,
            slices=info.sliceCount,
            places=_places(device, info.id),
        )
        for name, info in reversed(infos.items())
    )


def instances_of(device: Any) -> tuple[MigInstance, ...]:
    """Return all GPU instances, of any owner; an unusable one has no UUID."""
    named = _named(device)
    return tuple(_instance(handle, info, named) for handle, info in _gpu_instances(device))


def instance_at(uuid: str, desired: MigInstance) -> MigInstance | None:
    """See `Driver.instance_at`."""
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    handle = _at(device, desired)
    return None if handle is None else _seen(device, handle)


def check_place(uuid: str, desired: MigInstance) -> None:
    """See `Driver.check_place`."""
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    there = [i for i in instances_of(device) if i.overlaps(desired.start, desired.size)]
    if there:
        raise PlaceTaken(_no_room(uuid, desired, there))


def make_instance(uuid: str, desired: MigInstance, *, known: str | None) -> MigInstance:
    """See `Driver.make_instance`."""
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    handle = _at(device, desired)
    there = _seen(device, handle) if handle is not None else desired
    if known and there.uuid in ("", known):
        if not there.uuid:
            raise InstanceLost(f"{desired} on GPU {uuid} does not exist any more")
        return there
    if handle is None:
        handle = _make(device, uuid, desired)
    elif known is None or known:
        raise PlaceTaken(f"{there} on GPU {uuid} is not ours")
    if not _seen(device, handle).uuid:
        _make_compute(device, handle)
    return _seen(device, handle)


def remove_instance(uuid: str, instance: MigInstance) -> None:
    """See `Driver.remove_instance`."""
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError_NotFound:
        return  # the device is gone, and its instances with it
    handle = _at(device, instance)
    if handle is None or (instance.uuid and _seen(device, handle).uuid not in ("", instance.uuid)):
        return  # it is gone, and the instance there now belongs to somebody else
    try:
        for compute in _compute_instances(handle):
            pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(handle)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_IN_USE:
            raise InstanceInUse(f"{instance} on GPU {uuid} is in use") from error
        raise


def _infos(device: Any) -> Iterator[Any]:
    for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = optional(lambda kind=kind: _info(device, kind), None)  # type: ignore[misc]
        if info is not None:
            yield info


def _info(device: Any, kind: int) -> Any:
    try:
        return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
    return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind, version=1)  # before R510


def _name(info: Any) -> str:
    """Return the profile's name, such as 1g.5gb; derived if the driver does not name it."""
    named = text(getattr(info, "name", ""))
    return named.removeprefix("MIG ") or f"{info.sliceCount}g.{-(-info.memorySizeMB // 1024)}gb"


def _places(device: Any, profile: int) -> tuple[tuple[int, int], ...]:
    count = ctypes.c_uint()
    query = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    query(device, profile, None, ctypes.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    query(device, profile, found, ctypes.byref(count))
    return tuple((place.start, place.size) for place in found[: count.value])


def _gpu_instances(device: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every GPU instance with its profile."""
    for info in {info.id: info for info in _infos(device)}.values():
        count = ctypes.c_uint()
        found = (pynvml.c_nvmlGpuInstance_t * info.instanceCount)()
        pynvml.nvmlDeviceGetGpuInstances(device, info.id, found, ctypes.byref(count))
        for handle in found[: count.value]:
            yield handle, info


def _named(device: Any) -> dict[int, tuple[str, int]]:
    """Return UUID and compute instance by the id of the GPU instance.

    A GPU instance with several compute instances has no UUID of its own and is left out.
    """
    found: dict[int, tuple[str, int]] = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except pynvml.NVMLError_NotFound:
            continue
        number = pynvml.nvmlDeviceGetGpuInstanceId(instance)
        compute = pynvml.nvmlDeviceGetComputeInstanceId(instance)
        is_whole = number not in found
        found[number] = (text(pynvml.nvmlDeviceGetUUID(instance)) if is_whole else "", compute)
    return found


def _instance(handle: Any, info: Any, named: dict[int, tuple[str, int]]) -> MigInstance:
    said = pynvml.nvmlGpuInstanceGetInfo(handle)
    uuid, compute = named.get(said.id, ("", 0))
    place = said.placement
    return MigInstance(_name(info), place.start, place.size, uuid, said.id, compute)


def _info_of(device: Any, handle: Any) -> Any:
    """Return the profile of a GPU instance."""
    profile = pynvml.nvmlGpuInstanceGetInfo(handle).profileId
    return next(info for info in _infos(device) if info.id == profile)


def _seen(device: Any, handle: Any) -> MigInstance:
    """Return the current state of a GPU instance."""
    return _instance(handle, _info_of(device, handle), _named(device))


def _at(device: Any, desired: MigInstance) -> Any:
    """Return the GPU instance of this profile at exactly this place, if it exists."""
    for handle, info in _gpu_instances(device):
        place = pynvml.nvmlGpuInstanceGetInfo(handle).placement
        if (_name(info), place.start, place.size) == (desired.profile, desired.start, desired.size):
            return handle
    return None


def _make(device: Any, uuid: str, desired: MigInstance) -> Any:
    info = next((info for info in _infos(device) if _name(info) == desired.profile), None)
    if info is None:
        raise PlaceTaken(f"GPU {uuid} has no profile {desired.profile}, or is not in MIG mode")
    place = pynvml.c_nvmlGpuInstancePlacement_t(desired.start, desired.size)
    try:
        return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, info.id, ctypes.byref(place))
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
            raise
        raise PlaceTaken(_no_room(uuid, desired, instances_of(device))) from error


def _no_room(uuid: str, desired: MigInstance, there: Sequence[MigInstance]) -> str:
    others = ", ".join(map(str, there)) or "nothing that NVML names"
    return f"no room for {desired} on GPU {uuid}: there is {others}, which is not ours"


def _make_compute(device: Any, handle: Any) -> None:
    """Make the compute instance that covers all of a GPU instance."""
    slices = _info_of(device, handle).sliceCount
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = optional(lambda kind=kind: _compute_info(handle, kind), None)  # type: ignore[misc]
        if info is not None and info.sliceCount == slices:
            pynvml.nvmlGpuInstanceCreateComputeInstance(handle, info.id)
            return
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _compute_info(handle: Any, kind: int) -> Any:
    engines = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    # Version 1 of the struct has all fields that are needed, and every driver with MIG knows it.
    return pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, kind, engines, version=1)


def _compute_instances(handle: Any) -> Iterator[Any]:
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = optional(lambda kind=kind: _compute_info(handle, kind), None)  # type: ignore[misc]
        if info is None:
            continue
        count = ctypes.c_uint()
        found = (pynvml.c_nvmlComputeInstance_t * info.instanceCount)()
        pynvml.nvmlGpuInstanceGetComputeInstances(handle, info.id, found, ctypes.byref(count))
        yield from found[: count.value]
