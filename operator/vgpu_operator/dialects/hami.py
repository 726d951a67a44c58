"""HAMi's dialect: containers use extended resources and two environment variables.

It behaves like HAMi v2.10, except that invalid input, which HAMi ignores, is refused. Memory is a
plain number of MiB. The API server rewrites numbers (`4000` becomes `4k`, `16384Mi` becomes
`16Gi`), so an amount with a binary suffix is in bytes and any other amount is in MiB.
"""

from __future__ import annotations

from fractions import Fraction

from vgpu_api import names, quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1 import VGPURequest
from vgpu_api.v1alpha1.gpudevice import CorePolicy
from vgpu_api.v1alpha1.vgpuclaim import ANY_PROFILE
from vgpu_operator.dialects import hami_annotations
from vgpu_operator.dialects.containers import PodContainer, ResourceDialect, is_given

MAX_COUNT = 64
MAX_PRIORITY = 10
MAX_MEMORY_MIB = 1 << 30
"""1 PiB for one device; a larger number was meant in another unit."""

CORE_POLICIES: dict[str, CorePolicy] = {
    "default": "Default",
    "force": "Force",
    "disable": "Disable",
}
MEMORY_EXPECTED = (
    "a size per device: a whole number of MiB such as 8192, or with its unit such as 8Gi"
)


def resource_names(config: ClusterConfig) -> tuple[str, ...]:
    """Return the resources of this dialect, the count first."""
    nvidia = config.nvidia
    return (
        nvidia.resource_count_name,
        nvidia.resource_memory_name,
        nvidia.resource_memory_percentage_name,
        nvidia.resource_core_name,
        nvidia.resource_priority_name,
    )


def applies(container: Container, config: ClusterConfig) -> bool:
    """Return True if the container requests a device, by a count or by memory or cores alone.

    A count of 0 requests nothing, whatever else is given. An invalid count does apply, so that it
    is refused rather than overlooked.
    """
    count, memory, percentage, cores, _ = resource_names(config)
    if container.requested(count) is None:
        return any(container.requested(name) is not None for name in (memory, percentage, cores))
    return is_given(container, count)


def request(pod: Pod, place: PodContainer, config: ClusterConfig) -> VGPURequest:
    """Return the request of one container.

    Raises:
        BadInput: An amount, a variable or a selecting annotation is invalid.
    """
    nvidia = config.nvidia
    if _requests_any_instance(pod, place, config):
        return VGPURequest(
            name=place.name,
            phase=place.phase,
            count=count(place, config),
            mode="MIG",
            mig_profile=ANY_PROFILE,
            selector=hami_annotations.selector(pod),
        )
    memory_mib = memory(place, config)
    # A size takes precedence over a percentage, and either over the configured default, as in HAMi.
    percent = None if memory_mib is not None else percentage(place, config)
    if memory_mib is None and percent is None and nvidia.default_memory > 0:
        memory_mib = nvidia.default_memory
    cores = core_share(place, config)
    if cores is None:
        cores = 100 if _is_exclusive(place, config) else nvidia.default_cores
    return VGPURequest(
        name=place.name,
        phase=place.phase,
        count=count(place, config),
        memory=None if memory_mib is None else quantity.format_mib(memory_mib),
        memory_percent=percent,
        cores=cores,
        mode=hami_annotations.mode(pod),
        core_policy=core_policy(place, config),
        compute_priority=priority(place, config),
        selector=hami_annotations.selector(pod),
    )


def _requests_any_instance(pod: Pod, place: PodContainer, config: ClusterConfig) -> bool:
    """Return True if a bare count requests MIG instances of any size (`migStrategy: single`).

    To get an undivided GPU, a pod requests 100 % of its memory.
    """
    count, memory, percentage, cores, _ = resource_names(config)
    return (
        config.nvidia.mig_strategy == "single"
        and place.container.requested(count) is not None
        and all(place.container.requested(name) is None for name in (memory, percentage, cores))
        and hami_annotations.mode(pod) in ("Any", "MIG")
    )


def _is_exclusive(place: PodContainer, config: ClusterConfig) -> bool:
    """Return True if a container that requests no share of compute gets its devices exclusively.

    That is so if it requests 100 % of the memory or no memory at all. An amount of 0 means all of
    the memory, but shared. `defaultMem` does not count as a request: the container then gets the
    device exclusively, with that much memory. Source: HAMi v2.10, whose admission adds the cores
    before it fills in defaults.
    """
    nvidia = config.nvidia
    if place.container.requested(nvidia.resource_memory_percentage_name) is not None:
        return (percentage(place, config) or 0) == 100
    return place.container.requested(nvidia.resource_memory_name) is None


def count(place: PodContainer, config: ClusterConfig) -> int:
    """Return the number of devices; the default comes from the configuration."""
    name = config.nvidia.resource_count_name
    given = place.number(name, f"a number of GPUs, 1 to {MAX_COUNT}")
    if given is None:
        return config.nvidia.default_gpu_num
    return place.whole(name, given, 1, MAX_COUNT, f"a number of GPUs, 1 to {MAX_COUNT}")


def memory(place: PodContainer, config: ClusterConfig) -> int | None:
    """Return the MiB per device, or None if it is absent or 0."""
    name = config.nvidia.resource_memory_name
    given = place.container.requested(name)
    if given is None:
        return None
    number = place.number(name, MEMORY_EXPECTED) or Fraction(0)
    # HAMi's users write a number of MiB. The API server may return a large one with a suffix, and
    # then it is in bytes.
    if quantity.has_binary_suffix(given):
        number /= quantity.MIB
    else:
        number *= config.nvidia.memory_factor
    return place.whole(name, number, 0, MAX_MEMORY_MIB, MEMORY_EXPECTED) or None


def percentage(place: PodContainer, config: ClusterConfig) -> int | None:
    """Return the percentage of each device's memory, at most 100, or None if absent or below 1."""
    name = config.nvidia.resource_memory_percentage_name
    expected = "a whole percentage, 0 to 100"
    given = place.number(name, expected)
    if given is None or given <= 0:
        return None
    # Clamped as in HAMi, for pods that are stored already; admission refuses such a value, because
    # its author expects an effect.
    return place.whole(name, min(given, Fraction(100)), 1, 100, expected)


def core_share(place: PodContainer, config: ClusterConfig) -> int | None:
    """Return the requested percentage of each device's compute, at most 100; None if not set."""
    name = config.nvidia.resource_core_name
    expected = "a whole percentage, 0 to 100"
    given = place.number(name, expected)
    if given is None:
        return None
    return place.whole(name, min(given, Fraction(100)), 0, 100, expected)


def priority(place: PodContainer, config: ClusterConfig) -> int | None:
    """Return the throttling priority, 0 being the highest, or None."""
    name = config.nvidia.resource_priority_name
    expected = f"a priority, 0 (highest) to {MAX_PRIORITY}"
    given = place.number(name, expected)
    return None if given is None else place.whole(name, given, 0, MAX_PRIORITY, expected)


def core_policy(place: PodContainer, config: ClusterConfig) -> CorePolicy:
    """Return when the share of compute is enforced, as set in the container or configuration."""
    written = place.container.env_value(names.ENV_CORE_POLICY) or ""
    if not written.strip():
        return config.nvidia.core_policy
    policy = CORE_POLICIES.get(written.strip().lower())
    if policy is None:
        raise BadInput.unsupported(
            place.env_path(names.ENV_CORE_POLICY), written, ("default", "force", "disable")
        )
    return policy


DIALECT = ResourceDialect(
    applies=applies,
    request=request,
    placement=hami_annotations.placement,
    resource_names=resource_names,
    in_slots=True,
)
