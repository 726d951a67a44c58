"""Validates pods that request a GPU with a table of rules. Errors name the field and the value.

HAMi ignores a request that it cannot parse. Here the pod is refused, so that its author learns of
the mistake. The rules apply at creation only: later, the scheduler itself sets `spec.nodeName`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from vgpu_api import names, quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput, Fault, QuantityError
from vgpu_operator.admission.rules.denial import denying
from vgpu_operator.admission.rules.raw_pod import read_pod
from vgpu_operator.dialects import hami, native
from vgpu_operator.dialects.containers import PodContainer, each_container
from vgpu_operator.dialects.hami_annotations import annotation_field, is_true
from vgpu_operator.dialects.numa_spec import numa_spec
from vgpu_operator.dialects.pod_groups import named_group
from vgpu_operator.dialects.reading import dialects

Rule = Callable[[Pod, Sequence[PodContainer], ClusterConfig], None]
"""Raises `BadInput` for an invalid pod, given the pod and its containers that request devices."""

ADMITTED_FIELD = f"metadata.labels[{names.LABEL_ADMITTED}]"
HIDDEN = "void"
"""The value of NVIDIA_VISIBLE_DEVICES with which a runtime exposes no device."""
HARMLESS = frozenset({"", "none", HIDDEN})
RESERVED_PREFIXES = ("CUDA_DEVICE_MEMORY_", "CUDA_DEVICE_SM_")
"""HAMi's limit variables. CUDA's own (CUDA_DEVICE_ORDER, …_MAX_CONNECTIONS) remain allowed."""
RESERVED_NAMES = frozenset({names.ENV_LIMIT_PAGE, names.ENV_USAGE_REGION})

COVERED_PATHS = (names.CONTAINER_FOLDER, names.CONTAINER_PRELOAD)
"""Container paths that no mount may cover or lie below."""
HOST_FOLDERS = (
    "/var/lib/kubelet/device-plugins",
    "/etc/cdi",
    "/run/cdi",
    "/var/lib/vgpu",
    "/run/vgpu",
    "/usr/local/vgpu",
    "/usr/lib/vgpu",
)
"""Host paths; write access to them would allow taking devices or changing limits."""


UNKEPT: Mapping[str, tuple[Callable[[str], bool], str]] = {
    names.HAMI_VULKAN: (
        lambda written: written not in names.FALSE,
        "the library limits CUDA, and Vulkan could allocate past the limit; leave it "
        "out, or ask for a whole GPU, which needs no limit",
    ),
    names.VOLCANO_PODGROUP_POLICY: (
        lambda written: True,
        "pods of a group may share a GPU; leave it out, and ask for whole GPUs where they must not",
    ),
}
"""Values that promise something we cannot do, with the replacement, by annotation."""


def disables_control(raw_pod: dict[str, Any]) -> bool:
    """Return True if the pod asks to run without `libvgpu.so`. Its namespace must allow that.

    Raises:
        Denied: The pod is invalid.
    """
    with denying():
        return any(_control_is_off(place) for place in each_container(read_pod(raw_pod)))


def refuse_what_is_wrong(
    pod: Pod,
    requesting: Sequence[PodContainer],
    config: ClusterConfig,
    *,
    may_disable_control: bool = False,
) -> None:
    """Apply the rules in order to the pod as its author wrote it.

    Raises:
        BadInput: The first rule is broken.
    """
    for rule in RULES:
        rule(pod, requesting, config)
    if not may_disable_control:
        _control_stays_on(pod)


def _promises_are_kept(pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig) -> None:
    """Refuse annotations that promise something we cannot do, rather than ignore them."""
    annotations = pod.metadata.annotations
    for key, (promise, instead) in UNKEPT.items():
        written = annotations.get(key, "").strip()
        if written and promise(written):
            raise BadInput(
                field=annotation_field(key), value=written, fault=Fault.UNSUPPORTED, detail=instead
            )
    spec = numa_spec(pod)
    if spec is not None and spec.exclusive == "Required":
        raise BadInput(
            field=annotation_field(names.ACK_NUMA_SPEC),
            value="singleNUMANodeExclusive: Required",
            fault=Fault.UNSUPPORTED,
            detail="no NUMA node is kept for one pod; write Preferred, or ask for "
            "all GPUs of a NUMA node",
        )


def _group_is_started(pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig) -> None:
    """Refuse invalid annotations about the pod's group, and all of them where they cannot act."""
    named_group(pod, config)


def _node_is_not_chosen(
    pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig
) -> None:
    if pod.spec.node_name:
        raise BadInput.forbidden(
            "spec.nodeName", "the scheduler chooses the node of a pod that asks for a GPU"
        )


def _amounts_are_in_range(
    pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig
) -> None:
    """Refuse amounts out of range.

    The parser clamps or ignores them as HAMi does, but an author who writes one expects an effect.
    """
    nvidia, volcanos = config.nvidia, config.volcano
    recorded = native.slots_added(pod)
    for place in requesting:
        percentages = [volcanos.resource_memory_percentage_name, volcanos.resource_core_name]
        if place.name not in recorded:
            hami.memory(place, config)
            hami.priority(place, config)
            percentages += [nvidia.resource_memory_percentage_name, nvidia.resource_core_name]
        for name in percentages:
            given = place.container.requested(name)
            if given is not None and _percentage(given) is None:
                raise BadInput(
                    field=place.resource_path(name),
                    value=given,
                    expected="a whole percentage, 0 to 100",
                )


def _percentage(given: str | int) -> int | None:
    try:
        number = quantity.parse(given)
    except QuantityError:
        return None
    whole = number.denominator == 1 and 0 <= number <= Fraction(100)
    return number.numerator if whole else None


def _slots_stand_alone(pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig) -> None:
    """Refuse amounts in a container of a named claim, because the claim decides its devices."""
    if native.named_claim(pod) is None:
        return
    count, *amounts = hami.resource_names(config)
    for place in requesting:
        for name in amounts:
            if place.container.requested(name) is not None:
                raise BadInput.forbidden(
                    place.resource_path(name),
                    f"the pod has {names.ANNOTATION_CLAIM}: write it in the claim",
                )
        if place.container.requested(count) not in (None, 1, "1"):
            raise BadInput(
                field=place.resource_path(count),
                value=place.container.requested(count),
                expected="1, the slot of a container that a claim serves",
            )


def _words_of_one_dialect(
    pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig
) -> None:
    """Refuse two dialects in one container. A slot next to another dialect means the count 1."""
    for place in requesting:
        container = place.container
        spoken = next((d for d in dialects() if d.applies(container, config)), None)
        if spoken is None or spoken.in_slots:
            continue
        for other in dialects():
            for number, name in enumerate(other.resource_names(config)):
                given = container.requested(name)
                is_slot = other.in_slots and number == 0 and given in (1, "1")
                if other is spoken or given is None or is_slot:
                    continue
                raise BadInput.forbidden(
                    place.resource_path(name),
                    f"the container asks by {spoken.resource_names(config)[0]} and the like",
                )


def _unprivileged(pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig) -> None:
    """Refuse privileged containers anywhere in the pod, because they could exceed any grant."""
    for place in each_container(pod):
        refuse_privileged(place.path, place.container)


def refuse_privileged(path: str, container: Container) -> None:
    """Refuse a privileged container.

    Raises:
        BadInput: Names the field.
    """
    context = container.security_context
    if context is not None and context.privileged:
        raise BadInput.forbidden(
            f"{path}.securityContext.privileged",
            "a privileged container, in a pod that asks for a GPU, can open every GPU of its node",
        )


def _environment_is_free(
    pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig
) -> None:
    """Refuse variables that the operator sets itself, in any container of the pod."""
    for place in each_container(pod):
        refuse_reserved_variables(place.path, place.container)


def refuse_reserved_variables(path: str, container: Container) -> None:
    """Refuse a container that sets a variable whose value the claim and the node decide.

    Raises:
        BadInput: Names the first such variable.
    """
    for variable in container.env:
        reason = _why_reserved(variable.name, variable.value or "")
        if reason is not None:
            raise BadInput.forbidden(f"{path}.env[{variable.name}]", reason)


def _why_reserved(name: str, value: str) -> str | None:
    if name.startswith(RESERVED_PREFIXES) or name in RESERVED_NAMES:
        return "leave it out, the limits come from the claim"
    if name == names.ENV_VISIBLE_DEVICES and value not in HARMLESS:
        return "leave it out, the claim decides which GPUs are visible"
    if name == "LD_PRELOAD" and ("libvgpu" in value or names.CONTAINER_FOLDER in value):
        return "leave it out, the node loads the library"
    return None


def _control_stays_on(pod: Pod) -> None:
    """Refuse to disable limits, unless an administrator has labelled the namespace."""
    for place in each_container(pod):
        if _control_is_off(place):
            raise BadInput.forbidden(
                place.env_path(names.ENV_DISABLE_CONTROL),
                "limits cannot be switched off in this namespace; its label "
                f"{names.LABEL_DISABLE_CONTROL}: {names.DISABLE_CONTROL_ALLOWED} would allow it",
            )


def _control_is_off(place: PodContainer) -> bool:
    return is_true(place.container.env_value(names.ENV_DISABLE_CONTROL) or "")


def _nothing_is_covered(
    pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig
) -> None:
    for place in requesting:
        for index, mount in enumerate(place.container.volume_mounts):
            if any(_touches(mount.mount_path, path) for path in COVERED_PATHS):
                raise BadInput(
                    field=f"{place.path}.volumeMounts[{index}].mountPath",
                    value=mount.mount_path,
                    detail=f"must not cover {' or '.join(COVERED_PATHS)} in a container with a GPU",
                )


def _node_folders_are_closed(
    pod: Pod, requesting: Sequence[PodContainer], config: ClusterConfig
) -> None:
    for index, volume in enumerate(pod.spec.volumes):
        host_path = volume.get("hostPath")
        path = host_path.get("path") if isinstance(host_path, dict) else None
        if isinstance(path, str) and any(_touches(path, folder) for folder in HOST_FOLDERS):
            raise BadInput(
                field=f"spec.volumes[{index}].hostPath.path",
                value=path,
                detail="a pod with a GPU must not mount folders in which the node keeps limits",
            )


def _touches(path: str, guarded: str) -> bool:
    """Return True if a mount at `path` covers the guarded path or lies below it."""
    path = _normal(path)
    guarded = _normal(guarded)
    return (
        path in ("/", guarded) or guarded.startswith(f"{path}/") or path.startswith(f"{guarded}/")
    )


def _normal(path: str) -> str:
    """Normalise an absolute path: no dots, no repeated slashes, and /run in place of /var/run."""
    plain = posixpath.normpath(f"/{path.lstrip('/')}")
    return plain.removeprefix("/var") if f"{plain}/".startswith("/var/run/") else plain


RULES: tuple[Rule, ...] = (
    _promises_are_kept,
    _group_is_started,
    _node_is_not_chosen,
    _amounts_are_in_range,
    _slots_stand_alone,
    _words_of_one_dialect,
    _unprivileged,
    _environment_is_free,
    _nothing_is_covered,
    _node_folders_are_closed,
)
