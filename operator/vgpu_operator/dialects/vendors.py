"""The dialects of other vendors: a number of devices, with memory and compute of each.

All names and their meanings are in the vendors' tables (`vgpu_api.vendors`). Each kind of device is
a dialect, and a container uses one of them.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from vgpu_api import names, quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput, Fault
from vgpu_api.v1alpha1 import DeviceSelector, VGPURequest
from vgpu_api.v1alpha1.vgpuclaim import (
    MAX_MODELS,
    MAX_PART_SIZE,
    MAX_UUIDS,
    AppClass,
    QosPolicy,
)
from vgpu_api.vendors import Kind, Memory, Selection, kinds
from vgpu_api.vendors.model import NumberedCores, Sizes
from vgpu_operator.dialects import hami_annotations
from vgpu_operator.dialects.containers import (
    PodContainer,
    ResourceDialect,
    each_container,
    is_given,
)

MAX_COUNT = 64
MAX_MEMORY_MIB = 1 << 30
_WHOLE = 100
"""All compute of a device, in percent."""
COUNT_EXPECTED = f"a number of devices, 1 to {MAX_COUNT}"


def dialects() -> tuple[ResourceDialect, ...]:
    """Return a dialect for each kind of device that is served."""
    return tuple(
        ResourceDialect(
            applies=partial(_applies, kind),
            request=partial(_request, kind),
            placement=hami_annotations.placement,
            resource_names=partial(_resource_names, kind),
            in_slots=True,
            vendor=kind.name,
        )
        for kind in kinds()
    )


def _resource_names(kind: Kind, config: ClusterConfig) -> tuple[str, ...]:
    return () if kind.name in config.vendors.leave_alone else kind.resources


def _applies(kind: Kind, container: Container, config: ClusterConfig) -> bool:
    """Return True if the container has a count other than 0. Invalid counts apply, too."""
    is_served = kind.name not in config.vendors.leave_alone
    return is_served and any(is_given(container, name) for name in kind.requested_by)


def _request(kind: Kind, pod: Pod, place: PodContainer, config: ClusterConfig) -> VGPURequest:
    """Return the request of one container.

    Raises:
        BadInput: An amount or a selecting annotation is invalid.
    """
    _refuse_unsupported(kind, pod, place)
    _refuse_two_numberings(kind, pod, place)
    if kind.in_parts:
        return _part_request(kind, pod, place)
    count = _count(kind, place)
    memory_mib = None if kind.memory is None else _memory(kind, kind.memory, place, count)
    app_class = _app_class(kind, pod, place, count)
    is_online = app_class == "Online"
    return VGPURequest(
        name=place.name,
        phase=place.phase,
        vendor=kind.name,
        count=count,
        memory=None if memory_mib is None else quantity.format_mib(memory_mib),
        memory_percent=100 if memory_mib is None and not kind.counted else None,
        # The plugin gives Online pods precedence instead of a share, so they reserve no compute.
        cores=0 if is_online else _cores(kind, place, count),
        selector=_selector(kind, pod),
        app_class=app_class,
        qos_policy=None if is_online else _qos_policy(kind, pod),
        links_first=_is_links_first(kind, pod),
    )


def _part_request(kind: Kind, pod: Pod, place: PodContainer) -> VGPURequest:
    """Return a request for a part of this size, or for the smallest part with the amounts.

    If a size is given, other amounts are ignored. Memory without a unit is kept as it is, because
    its meaning depends on the node.
    """
    size = memory_mib = written = cores = None
    selector = _selector(kind, pod)
    if is_given(place.container, kind.count):
        expected = f"the size of a part, 1 to {MAX_PART_SIZE}"
        size = _whole(place, kind.count, 1, MAX_PART_SIZE, expected)
    else:
        assert kind.memory is not None
        assert kind.cores is not None
        name, given = kind.memory.resource, place.container.requested(kind.memory.resource)
        cores = 0
        if place.container.requested(kind.cores.resource) is not None:
            cores = _whole(place, kind.cores.resource, 1, _WHOLE, "a whole percentage, 1 to 100")
        if given is None:
            written = 1  # every part has at least that much
        elif quantity.has_binary_suffix(given):
            memory_mib = _requested_mib(kind.memory, place, given)
            if not memory_mib:
                raise place.bad(name, "a size of at least 1 MiB")
        else:
            expected = "a whole number of GiB or MiB from 1 on, or with its unit such as 8Gi"
            written = _whole(place, name, 1, MAX_MEMORY_MIB, expected)
    return VGPURequest(
        name=place.name,
        phase=place.phase,
        vendor=kind.name,
        memory=None if memory_mib is None else quantity.format_mib(memory_mib),
        cores=cores,
        selector=selector,
        part_size=size,
        part_memory=written,
    )


def _app_class(kind: Kind, pod: Pod, place: PodContainer, count: int) -> AppClass | None:
    """Return the pod's class, for kinds that limit each container to one device with a class."""
    of = kind.neighbours
    written = None if of is None else pod.metadata.annotations.get(of.app_class)
    if of is None or written is None:
        return None
    field = hami_annotations.annotation_field(of.app_class)
    if written not in of.classes:
        raise BadInput.unsupported(field, written, sorted(of.classes))
    if count != 1:
        raise place.bad(kind.count, f"1: the pod has {of.app_class}")
    return of.classes[written]


def _qos_policy(kind: Kind, pod: Pod) -> QosPolicy | None:
    of = kind.neighbours
    if of is None:
        return None
    written = pod.metadata.annotations.get(of.qos_policy, of.default_policy)
    if written not in of.policies:
        field = hami_annotations.annotation_field(of.qos_policy)
        raise BadInput.unsupported(field, written, sorted(of.policies))
    return of.policies[written]


def _is_links_first(kind: Kind, pod: Pod) -> bool:
    of = kind.neighbours
    written = None if of is None else pod.metadata.annotations.get(of.links_first)
    if of is None or written is None:
        return False
    if written not in names.TRUE | names.FALSE:
        field = hami_annotations.annotation_field(of.links_first)
        raise BadInput(field=field, value=written, expected="true or false")
    return written in names.TRUE


def annotated(kind: Kind, pod: Pod) -> tuple[str, str] | None:
    """Return the annotation that admission adds if the pod lacks it, or None."""
    of = kind.neighbours
    if of is None or of.qos_policy in pod.metadata.annotations:
        return None
    is_online = of.classes.get(pod.metadata.annotations.get(of.app_class, "")) == "Online"
    return None if is_online else (of.qos_policy, of.default_policy)


def _memory(kind: Kind, memory: Memory, place: PodContainer, count: int) -> int | None:
    """Return the MiB of each device, or None for all of its memory.

    0 means absent, except with named sizes. Several devices are divided only if the table allows
    that. A single device that was rounded up to a module of two may be a part.
    """
    given = place.container.requested(memory.resource)
    sizes = memory.sizes
    if kind.whole is not None and _is_whole(kind, place, count):
        return kind.whole.memory * memory.unit_mib
    if given is None:
        return None if sizes is None else sizes.whole_mib
    requested_mib = _requested_mib(memory, place, given)
    if sizes is None:
        return requested_mib or None
    rounded = _rounded(memory, sizes, place, requested_mib)
    is_module = kind.whole_modules and count == 2
    if count > 1 and rounded != sizes.whole_mib and not (sizes.several or is_module):
        raise place.bad(
            memory.resource,
            "left out with several devices, which are never divided, or ask for one",
        )
    return rounded


def _rounded(memory: Memory, sizes: Sizes, place: PodContainer, requested_mib: int) -> int:
    """Return the smallest named size that is large enough, or else a whole device."""
    if requested_mib > sizes.most_mib:
        raise place.bad(memory.resource, f"at most {sizes.most_mib} MiB, which a device has")
    steps = (part.memory_mib for part in sizes.parts)
    return next((step for step in steps if step >= requested_mib), sizes.whole_mib)


def _requested_mib(memory: Memory, place: PodContainer, given: str | int) -> int:
    unit = "MiB" if memory.unit_mib == 1 else f"units of {memory.unit_mib} MiB"
    expected = f"a size per device: a whole number of {unit}, or with its unit such as 8Gi"
    number = _number(place, memory.resource, expected)
    if quantity.has_binary_suffix(given):
        number /= quantity.MIB
    else:
        number *= memory.unit_mib
    if memory.amounts and number / memory.unit_mib not in memory.amounts:
        raise BadInput(
            field=place.resource_path(memory.resource),
            value=given,
            fault=Fault.UNSUPPORTED,
            detail=f"supported values: {', '.join(map(str, memory.amounts))} ({unit})",
        )
    return place.whole(memory.resource, number, 0, MAX_MEMORY_MIB, expected)


def written(kind: Kind, place: PodContainer) -> dict[str, int]:
    """Return, by resource, the amounts that admission writes into a requesting container.

    Raises:
        BadInput: The count is invalid.
    """
    count, amounts = _count(kind, place), {}
    if kind.whole_modules:
        amounts[kind.count] = count
    if kind.cores is not None and kind.cores.several is not None and count > 1:
        amounts[kind.cores.resource] = count * kind.cores.several
    memory = kind.memory
    if memory is not None and memory.sizes is not None:
        is_given = place.container.requested(memory.resource) is not None
        if memory.sizes.write_whole or is_given:
            amounts[memory.resource] = _memory(kind, memory, place, count) or 0
    if kind.whole is not None and _is_whole(kind, place, count):
        if kind.memory is not None:
            amounts[kind.memory.resource] = count * kind.whole.memory
        if kind.cores is not None:
            amounts[kind.cores.resource] = count * kind.whole.cores
    return amounts


def counted(kind: Kind, place: PodContainer) -> tuple[str, int] | None:
    """Return the annotation with a container's number of devices, or None."""
    count = _count(kind, place)
    return (kind.counted_in, count) if kind.counted_in is not None and count > 1 else None


def _is_whole(kind: Kind, place: PodContainer, count: int) -> bool:
    """Return True if the request takes whole devices of a kind that can be divided."""
    return (
        count > 1 or kind.memory is None or place.container.requested(kind.memory.resource) is None
    )


def _count(kind: Kind, place: PodContainer) -> int:
    if kind.in_parts:
        return 1
    numbered = requested_numbering(kind, place)
    if numbered is not None:
        return _devices_of_cores(numbered, place)
    count = _whole(place, kind.count, 1, MAX_COUNT, COUNT_EXPECTED)
    if not kind.whole_modules or count % 2 == 0:
        return count
    if count == 1:
        return 2
    raise place.bad(kind.count, "an even number of devices, or 1: they come two to a module")


def requested_numbering(kind: Kind, place: PodContainer) -> NumberedCores | None:
    """Return how cores are numbered, if the container requests cores and not devices."""
    numbered = kind.numbered_cores
    is_requested = numbered is not None and is_given(place.container, numbered.resource)
    return numbered if is_requested else None


def _devices_of_cores(numbered: NumberedCores, place: PodContainer) -> int:
    cores = _requested_cores(numbered, place)
    if cores % numbered.each and cores > numbered.each:
        raise place.bad(numbered.resource, f"at most {numbered.each}, or a multiple of it")
    return -(-cores // numbered.each)


def _requested_cores(numbered: NumberedCores, place: PodContainer) -> int:
    most = MAX_COUNT * numbered.each
    return _whole(place, numbered.resource, 1, most, f"a number of cores, 1 to {most}")


def _refuse_two_numberings(kind: Kind, pod: Pod, place: PodContainer) -> None:
    """Refuse cores and whole devices in one pod: the plugin reads a single list of numbers."""
    numbered = requested_numbering(kind, place)
    if numbered is None:
        return
    for other in each_container(pod):
        if is_given(other.container, kind.count):
            raise BadInput.forbidden(
                place.resource_path(numbered.resource),
                f"{other.resource_path(kind.count)} asks for whole devices: a pod asks for devices "
                "or for cores, since the vendor's device plugin reads one list of numbers",
            )


def _refuse_unsupported(kind: Kind, pod: Pod, place: PodContainer) -> None:
    """Refuse annotations that HAMi honours and this project does not, rather than ignore them."""
    for name in kind.unsupported.resources:
        given = place.container.requested(name)
        if given not in (None, 0, "0"):
            raise BadInput.forbidden(place.resource_path(name), "not supported, leave it out")
    for key, values in kind.unsupported.annotations.items():
        written_there = pod.metadata.annotations.get(key, "")
        if written_there in values:
            raise BadInput(
                field=hami_annotations.annotation_field(key),
                value=written_there,
                fault=Fault.UNSUPPORTED,
                detail="leave it out",
            )


def _cores(kind: Kind, place: PodContainer, count: int) -> int:
    """Return the percentage of the compute of each device, at most 100."""
    if kind.memory is not None and kind.memory.sizes is not None and kind.memory.sizes.cores:
        part = _memory(kind, kind.memory, place, count) or 0
        return part * _WHOLE // kind.memory.sizes.whole_mib
    if kind.numbered_cores is not None:
        return _share_of_numbered(kind, place)
    if kind.cores is None:
        return _WHOLE if kind.alone else 0
    if kind.whole is not None and _is_whole(kind, place, count):
        return kind.whole.cores
    if kind.cores.several is not None and count > 1:
        return kind.cores.several
    name, expected = kind.cores.resource, "a whole percentage, 0 to 100"
    if place.container.requested(name) is None:
        return kind.cores.default
    if kind.cores.units:
        return _whole(place, name, 1, _WHOLE, "a whole percentage, 1 to 100")
    number = _number(place, name, expected)
    if kind.cores.more_is_all:
        number = min(number, Fraction(_WHOLE))
    return place.whole(name, number, 0, _WHOLE, expected)


def _share_of_numbered(kind: Kind, place: PodContainer) -> int:
    """Return the percentage of each device that the requested cores are; 100 for whole devices."""
    numbered = requested_numbering(kind, place)
    if numbered is None:
        return _WHOLE
    return min(_requested_cores(numbered, place), numbered.each) * _WHOLE // numbered.each


def _selector(kind: Kind, pod: Pod) -> DeviceSelector | None:
    chosen = kind.selection
    most = MAX_UUIDS
    excluded = _words(pod, chosen.exclude_ids, most)
    others = (each for each in _words(pod, chosen.exclude_ids_too, most) if each not in excluded)
    found = DeviceSelector(
        models=_words(pod, chosen.use_types, MAX_MODELS),
        exclude_models=_words(pod, chosen.exclude_types, MAX_MODELS),
        uuids=_used_ids(pod, chosen),
        exclude_uuids=[*excluded, *others],
    )
    return None if found == DeviceSelector() else found


def _used_ids(pod: Pod, chosen: Selection) -> list[str]:
    """Return the UUIDs to which the pod is restricted: those in both annotations if it has both."""
    own = _words(pod, chosen.use_ids, MAX_UUIDS)
    other = _words(pod, chosen.use_ids_too, MAX_UUIDS)
    if not own or not other:
        return own or other
    both = [each for each in own if each in other]
    if not both:
        raise BadInput(
            field=hami_annotations.annotation_field(str(chosen.use_ids_too)),
            value=", ".join(other),
            detail=f"none of them is in {chosen.use_ids}: write one of the two",
        )
    return both


def _words(pod: Pod, key: str | None, most: int) -> list[str]:
    return [] if key is None else hami_annotations.comma_list(pod, key, most)


def _whole(place: PodContainer, name: str, low: int, high: int, expected: str) -> int:
    return place.whole(name, _number(place, name, expected), low, high, expected)


def _number(place: PodContainer, name: str, expected: str) -> Fraction:
    number = place.number(name, expected)
    if number is None:
        raise place.bad(name, expected)
    return number
