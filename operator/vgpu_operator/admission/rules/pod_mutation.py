"""Mutates pods that request a GPU, and no others.

Admission adds: the count, if only memory or cores are given; a slot for each container of a named
claim and for each container in Alibaba's or Volcano's dialect, recorded in an annotation; sizes as
plain numbers; our scheduler's name, our scheduling gate or a ResourceClaim
(docs/design/scheduler-modes.md); the runtime class, if one is configured; and
`NVIDIA_VISIBLE_DEVICES=void` in every container. Only the node's CDI spec overrides that value. So
a node without our device plugin exposes no devices (fail closed, rule 4 of the architecture), and
other containers of the pod cannot get devices through `envFrom` or their image, because the pod's
own variables take precedence.

Amounts next to a count of 0 are removed, so that the container runs without a device.

A pod with HAMi's label `hami.io/webhook: ignore` only gets the value `void`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from vgpu_api import dra, names, quantity
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput, Fault
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_api.vendors import Kind, kind_of
from vgpu_operator.admission.rules.claims_mode import refuse_without_claim
from vgpu_operator.admission.rules.denial import denying
from vgpu_operator.admission.rules.json_patch import JsonPatch, Operation, Step
from vgpu_operator.admission.rules.pod_validation import (
    ADMITTED_FIELD,
    HIDDEN,
    refuse_privileged,
    refuse_reserved_variables,
    refuse_what_is_wrong,
)
from vgpu_operator.admission.rules.raw_pod import read_pod
from vgpu_operator.dialects import (
    NamedClaim,
    PodDemand,
    containers_of_claim,
    native,
    read,
    vendors,
)
from vgpu_operator.dialects.containers import PodContainer, each_container
from vgpu_operator.dialects.hami import resource_names
from vgpu_operator.dialects.moved import movable, moved, restored
from vgpu_operator.dialects.reading import dialects, is_left_alone
from vgpu_operator.dialects.resource_claims import claim_of_pod, entry_of, is_of_scheduler
from vgpu_operator.dialects.switched_off import amounts_without_devices

DEFAULT_SCHEDULER = "default-scheduler"


def claim_named_by(raw_pod: dict[str, Any]) -> NamedClaim | None:
    """Return the claim or template that the caller must fetch for `mutate_pod`.

    Raises:
        Denied: The pod is invalid, or names a claim in another namespace.
    """
    with denying():
        pod = read_pod(raw_pod)
        return None if is_left_alone(pod) else native.named_claim(pod)


def mutate_pod(
    raw_pod: dict[str, Any],
    config: ClusterConfig,
    claim: VGPUClaim | None,
    *,
    may_disable_control: bool = False,
    token: str = "",
) -> list[Operation]:
    """Return the JSON patch for a pod that is being created. It may be empty.

    The patch for an already mutated pod is empty, because the API server may call again.

    Args:
        raw_pod: The pod as the API server sent it.
        config: The current resource names and settings.
        claim: The object that `claim_named_by` returned, if it exists.
        may_disable_control: The pod's namespace has the label that allows it to disable limits.
        token: 12 random hexadecimal digits for the name of a new ResourceClaim, in Claims mode.

    Raises:
        Denied: The pod's request is invalid or not allowed.
    """
    with denying():
        pod = read_pod(raw_pod)
        if not is_left_alone(pod):
            pod = restored(pod, config)
        patch = JsonPatch(raw_pod)
        demand = None if is_left_alone(pod) else read(pod, config)
        given = () if demand is None else _requesting_containers(pod, demand, claim)
        if demand is not None:
            # Validate before anything is changed, so that messages show what the author wrote.
            refuse_what_is_wrong(pod, given, config, may_disable_control=may_disable_control)
            refuse_without_claim(pod, demand, claim, config)
            slotless = given if demand.native is not None else _slotless(demand, given)
            if slotless:
                _add_slots(slotless, config, patch)
                _repeat_in_requests(slotless, config, patch)
            others = _of_other_vendors(demand)
            own = [p for p in given if p not in slotless and p.name not in others]
            _complete_amounts(own, config, patch)
            for place in given:
                if place.name in others:
                    _complete_others(pod, place, others[place.name], patch)
            _adapt_to_mode(pod, given, token, config, patch)
            _choose_runtime(pod, config, patch)
            patch.set("metadata", "labels", names.LABEL_ADMITTED, value=names.ADMITTED)
        elif names.LABEL_ADMITTED in pod.metadata.labels:
            raise BadInput.forbidden(
                ADMITTED_FIELD, "admission alone writes it, on a pod that asks for a GPU"
            )
        _leave_out_amounts(pod, config, patch)
        resources = [name for dialect in dialects() for name in dialect.resource_names(config)]
        for place in each_container(pod):
            is_requested = any(place.container.requested(name) is not None for name in resources)
            if demand is not None or is_requested:
                _hide_devices(("spec", place.section, place.index), patch)
        return patch.operations


def switched_off(raw_pod: dict[str, Any], config: ClusterConfig) -> list[str]:
    """Return a warning for each container whose amounts `mutate_pod` removes.

    Raises:
        Denied: The pod is invalid.
    """
    with denying():
        pod = read_pod(raw_pod)
    return [
        f"{place.resource_path(count)}: container {place.name!r} asks for 0 devices: it runs "
        f"without one, and {', '.join(words)} is left out"
        for place, count, words in _without_devices(pod, config)
    ]


def _without_devices(
    pod: Pod, config: ClusterConfig
) -> Iterator[tuple[PodContainer, str, tuple[str, ...]]]:
    """Yield containers with a count of 0, that count, and the amounts next to it."""
    if is_left_alone(pod):
        return
    for place in each_container(pod):
        found = amounts_without_devices(place.container, config)
        if found and not any(each.applies(place.container, config) for each in dialects()):
            yield place, *found


def _leave_out_amounts(pod: Pod, config: ClusterConfig, patch: JsonPatch) -> None:
    """Remove amounts next to a count of 0, because no node lists these resources."""
    for place, _, words in _without_devices(pod, config):
        for kind in ("limits", "requests"):
            steps = ("spec", place.section, place.index, "resources", kind)
            given = patch.get(*steps) or {}
            rest = {name: amount for name, amount in given.items() if name not in words}
            if rest != given:
                patch.set(*steps, value=rest)


def mutate_ephemeral_containers(raw_pod: dict[str, Any], former: dict[str, Any]) -> list[Operation]:
    """Return the JSON patch for ephemeral containers that are added to a pod with a GPU.

    Like all others, they get `NVIDIA_VISIBLE_DEVICES=void`. Existing ones cannot be changed.

    Args:
        raw_pod: The pod with the new containers, as the API server sent it.
        former: The pod without them.

    Raises:
        Denied: A new container selects GPUs itself, or is privileged.
    """
    patch = JsonPatch(raw_pod)
    with denying():
        there = {container.name for container in read_pod(former).spec.ephemeral_containers}
        for index, container in enumerate(read_pod(raw_pod).spec.ephemeral_containers):
            if container.name not in there:
                path = f"spec.ephemeralContainers[{index}]"
                refuse_reserved_variables(path, container)
                refuse_privileged(path, container)
                _hide_devices(("spec", "ephemeralContainers", index), patch)
    return patch.operations


def _requesting_containers(
    pod: Pod, demand: PodDemand, claim: VGPUClaim | None
) -> tuple[PodContainer, ...]:
    """Return the containers that get devices. For a named claim, the claim lists them."""
    desired = demand.containers if demand.native is None else _of_claim(pod, demand.native, claim)
    return tuple(place for place in each_container(pod) if place.name in desired)


def _of_other_vendors(demand: PodDemand) -> dict[str, Kind]:
    """Return, for each container with another vendor's devices, the kind of device."""
    requests = () if demand.spec is None else demand.spec.requests
    return {
        request.name: kind for request in requests if (kind := kind_of(request.vendor)) is not None
    }


def _complete_others(pod: Pod, place: PodContainer, kind: Kind, patch: JsonPatch) -> None:
    """Add the resources and annotations that the vendor's device plugin expects."""
    for name, amount in vendors.written(kind, place).items():
        if (
            place.container.requested(name) is None
            or quantity.parse(place.container.requested(name) or 0) != amount
        ):
            _give(place, name, str(amount), patch)
    counted = vendors.counted(kind, place)
    if counted is not None:
        patch.set("metadata", "annotations", counted[0], value=str(counted[1]))
    annotated = vendors.annotated(kind, pod)
    if annotated is not None:
        patch.set("metadata", "annotations", annotated[0], value=annotated[1])
    variable = kind.named_in
    if variable is not None and place.container.env_value(variable) is None:
        steps = ("spec", place.section, place.index, "env")
        named = {"name": variable, "value": place.name}
        patch.set(*steps, value=[*(patch.get(*steps) or []), named])


def _slotless(demand: PodDemand, given: tuple[PodContainer, ...]) -> tuple[PodContainer, ...]:
    """Return the requesting containers for whose resources the kubelet counts no slots."""
    return tuple(place for place in given if place.name in demand.slotless)


def _of_claim(pod: Pod, named: NamedClaim, claim: VGPUClaim | None) -> tuple[str, ...]:
    if claim is None:
        return _before_its_claim(pod, named)
    if named.is_template and claim.spec.binding_mode != "WaitForFirstConsumer":
        raise BadInput(
            field=native.claim_field(named),
            value=named.name,
            detail=f"bindingMode is {claim.spec.binding_mode}: a template's must be "
            "WaitForFirstConsumer",
        )
    desired = containers_of_claim(pod, claim.spec)
    foreign = [name for name in native.slots_added(pod) if name not in desired]
    if foreign:
        raise BadInput(
            field=native.SLOTS_ADDED_FIELD,
            value=",".join(foreign),
            detail="the claim has no such request; leave it out, admission writes it",
        )
    return desired


def _before_its_claim(pod: Pod, named: NamedClaim) -> tuple[str, ...]:
    """Return all containers of a pod whose claim does not exist yet.

    Helm creates pods before custom resources, so the pod waits for its claim. Slots cannot be added
    later, so each container gets one; a container without a request in the claim starts with the
    slot and sees no device. Controllers retry refused pods, so a controller's pod with several
    containers is refused instead, to avoid wasting slots.
    """
    recorded = native.slots_added(pod)
    places = list(each_container(pod))
    if recorded and {place.name for place in places}.issuperset(recorded):
        return recorded
    controlled = any(owner.controller for owner in pod.metadata.owner_references)
    if not places or recorded or (controlled and len(places) > 1):
        raise BadInput(
            field=native.claim_field(named),
            value=named.name,
            fault=Fault.NOT_FOUND,
            detail="create the claim first: without it admission cannot tell for which of the "
            "pod's containers it is",
        )
    return tuple(place.name for place in places)


def _add_slots(places: Iterable[PodContainer], config: ClusterConfig, patch: JsonPatch) -> None:
    """Add one slot per container, whatever its device count, and record these containers."""
    places = tuple(places)
    for place in places:
        _give(place, config.nvidia.resource_count_name, "1", patch)
    recorded = ",".join(place.name for place in places)
    patch.set("metadata", "annotations", names.ANNOTATION_SLOTS_ADDED, value=recorded)


def _complete_amounts(
    places: Iterable[PodContainer], config: ClusterConfig, patch: JsonPatch
) -> None:
    """Add a missing count, convert sizes to plain numbers, and equalise limits and requests."""
    count_name = config.nvidia.resource_count_name
    for place in places:
        if place.container.requested(count_name) is None:
            _give(place, count_name, str(config.nvidia.default_gpu_num), patch)
        for name in resource_names(config):
            given = place.container.requested(name)
            if given is None:
                continue
            desired = _plain_memory(given, config) if _is_memory(name, config) else given
            if desired != given or not _agree(place, name):
                _give(place, name, str(desired), patch)


def _repeat_in_requests(
    places: Iterable[PodContainer], config: ClusterConfig, patch: JsonPatch
) -> None:
    """Make limits and requests equal for resources that the kubelet does not count.

    The limit wins if both are set; a limit alone is left as it is.
    """
    words = [n for d in dialects() if not d.in_slots for n in d.resource_names(config)]
    for place in places:
        for name in words:
            given = place.container.requested(name)
            if given is not None and not _agree(place, name):
                _give(place, name, str(given), patch)


def _is_memory(name: str, config: ClusterConfig) -> bool:
    return name == config.nvidia.resource_memory_name


def _plain_memory(given: str | int, config: ClusterConfig) -> str | int:
    """Convert a size such as `16Gi` to the plain number of units that quotas count.

    A size that is not a whole number of units (memoryFactor > 1) is kept, and is read exactly later
    on.
    """
    if not quantity.has_binary_suffix(given):
        return given
    units = quantity.parse(given) / quantity.MIB / config.nvidia.memory_factor
    return str(units.numerator) if units.denominator == 1 else given


def _agree(place: PodContainer, name: str) -> bool:
    """Return True if limits and requests are equal, as Kubernetes requires of extended resources.

    A limit alone is enough, because the API server copies it into the requests.
    """
    resources = place.container.resources
    if name not in resources.limits:
        return False
    limit = quantity.parse(resources.limits[name])
    try:
        return quantity.parse(resources.requests.get(name, resources.limits[name])) == limit
    except BadInput:
        return False


def _give(place: PodContainer, name: str, amount: str, patch: JsonPatch) -> None:
    """Set the amount in limits and requests."""
    for kind in ("limits", "requests"):
        patch.set("spec", place.section, place.index, "resources", kind, name, value=amount)


def _adapt_to_mode(
    pod: Pod, given: Iterable[PodContainer], token: str, config: ClusterConfig, patch: JsonPatch
) -> None:
    """Change what depends on how decisions reach kube-scheduler."""
    match config.scheduling.mode:
        case "Extender":
            _choose_scheduler(pod, config, patch)
        case "Gate":
            _put_behind_gate(pod, patch)
            _move_amounts(pod, config, patch, has_claim=False)
        case "Claims":
            _name_resource_claim(pod, given, token, patch)
            _move_amounts(pod, config, patch, has_claim=True)


def _choose_scheduler(pod: Pod, config: ClusterConfig, patch: JsonPatch) -> None:
    """Choose our scheduler if the pod names none or one of our aliases.

    hami-scheduler stays, because our kube-scheduler has a profile of that name. The scheduler of a
    Volcano PodGroup stays, too (docs/design/scheduler-modes.md).
    """
    scheduling = config.scheduling
    chosen = pod.spec.scheduler_name
    aliased = (
        chosen in scheduling.scheduler_aliases
        and names.VOLCANO_GROUP not in pod.metadata.annotations
    )
    if scheduling.scheduler_name and (chosen in ("", DEFAULT_SCHEDULER) or aliased):
        patch.set("spec", "schedulerName", value=scheduling.scheduler_name)


def _put_behind_gate(pod: Pod, patch: JsonPatch) -> None:
    """Add our scheduling gate."""
    gates = pod.spec.scheduling_gates
    if not any(gate.get("name") == names.SCHEDULING_GATE for gate in gates):
        patch.set("spec", "schedulingGates", value=[*gates, {"name": names.SCHEDULING_GATE}])


def _name_resource_claim(
    pod: Pod, given: Iterable[PodContainer], token: str, patch: JsonPatch
) -> None:
    """Name a ResourceClaim in the pod, with one request for each container that gets devices.

    A pod that names one of its author's, or one that kube-scheduler allocates, is left as it is.
    """
    if is_of_scheduler(pod):
        return
    if claim_of_pod(pod) and entry_of(pod) != dra.POD_ENTRY:
        return
    if not claim_of_pod(pod):
        entry = {"name": dra.POD_ENTRY, "resourceClaimName": dra.made_claim_name(token)}
        entries = patch.get("spec", "resourceClaims") or []
        patch.set("spec", "resourceClaims", value=[*entries, entry])
    for place in given:
        steps = ("spec", place.section, place.index, "resources", "claims")
        used = {"name": dra.POD_ENTRY, "request": place.name}
        others = [each for each in patch.get(*steps) or [] if each.get("name") != dra.POD_ENTRY]
        patch.set(*steps, value=[*others, used])


def _move_amounts(pod: Pod, config: ClusterConfig, patch: JsonPatch, *, has_claim: bool) -> None:
    """Move amounts that no node lists to an annotation, and choose a scheduler that runs."""
    scheduling = config.scheduling
    ours = {scheduling.scheduler_name, *names.SCHEDULER_ALIASES} - {""}
    if pod.spec.scheduler_name in ours:  # our schedulers do not run in this mode
        patch.set("spec", "schedulerName", value=DEFAULT_SCHEDULER)
    amounts, words = moved(pod, config), movable(config, has_claim=has_claim)
    for place in each_container(pod):
        for kind in ("limits", "requests"):
            steps = ("spec", place.section, place.index, "resources", kind)
            given = patch.get(*steps) or {}
            taken = {name: amount for name, amount in given.items() if name in words}
            if taken:
                rest = {name: amount for name, amount in given.items() if name not in words}
                patch.set(*steps, value=rest)
                into = amounts.setdefault(place.name, {})
                # If a limit and a request differ, the limit counts, as in every dialect.
                amounts[place.name] = into | taken if kind == "limits" else taken | into
    if amounts:
        text = json.dumps(amounts, sort_keys=True, separators=(",", ":"))
        patch.set("metadata", "annotations", names.ANNOTATION_RESOURCES, value=text)


def _choose_runtime(pod: Pod, config: ClusterConfig, patch: JsonPatch) -> None:
    """Set the configured runtime class, unless the pod names one."""
    runtime = config.nvidia.runtime_class_name
    if runtime and not patch.get("spec", "runtimeClassName"):
        patch.set("spec", "runtimeClassName", value=runtime)


def _hide_devices(container: tuple[Step, ...], patch: JsonPatch) -> None:
    """Replace all values of `NVIDIA_VISIBLE_DEVICES` by `void`."""
    steps = (*container, "env")
    hidden = {"name": names.ENV_VISIBLE_DEVICES, "value": HIDDEN}
    env = list(patch.get(*steps) or [])
    # Replace every occurrence, because the policy vgpu-admitted checks each of them.
    written = [i for i, variable in enumerate(env) if variable.get("name") == hidden["name"]]
    for index in written:
        env[index] = hidden
    patch.set(*steps, value=env if written else [*env, hidden])
