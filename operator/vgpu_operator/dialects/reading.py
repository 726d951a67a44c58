"""Reads the demand of a pod: the dialect of each container, and one claim for all of them.

A pod has one claim. Either the pod names it, or its containers request resources and a claim is
created for them. A pod cannot do both.
"""

from __future__ import annotations

from functools import lru_cache

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput, Fault
from vgpu_api.v1alpha1 import Placement, VGPUClaimSpec
from vgpu_api.v1alpha1.vgpuclaim import MAX_CLAIM_BYTES, MAX_REQUESTS
from vgpu_operator.dialects import ack, hami, mig, native, vendors, volcano
from vgpu_operator.dialects.alike import Alike, question_of
from vgpu_operator.dialects.containers import PodContainer, ResourceDialect, each_container
from vgpu_operator.dialects.moved import restored
from vgpu_operator.dialects.numa_spec import numa_spec
from vgpu_operator.dialects.pod_demand import PodDemand

DIALECTS: tuple[ResourceDialect, ...] = (ack.DIALECT, volcano.DIALECT, mig.DIALECT, hami.DIALECT)
"""The dialects for NVIDIA's devices; the first one that applies to a container is used."""

_ALIKE = Alike()
_MAX_NAME = 63
_MAX_SELECTORS = MAX_CLAIM_BYTES * 3 // 4
"""The most bytes of selectors in a claim, which leaves enough room for the rest of the requests."""


@lru_cache(maxsize=1)
def dialects() -> tuple[ResourceDialect, ...]:
    """Return all dialects: those for NVIDIA's devices, and one for each kind of other vendors'."""
    return (*DIALECTS, *vendors.dialects())


def is_left_alone(pod: Pod) -> bool:
    """Return True if the pod has HAMi's opt-out label; such a pod is ignored and gets no GPU."""
    return pod.metadata.labels.get(names.HAMI_WEBHOOK_LABEL) == "ignore"


def read(pod: Pod, config: ClusterConfig) -> PodDemand | None:
    """Return the demand of a pod, or None if it requests no GPU.

    Raises:
        BadInput: The request is invalid. The message names the field and the value.
    """
    if is_left_alone(pod):
        return None
    if names.ANNOTATION_RESOURCES in pod.metadata.annotations:
        # In mode Gate and Claims, admission has moved the amounts into an annotation.
        pod = restored(pod, config)
    named = native.named_claim(pod)
    recorded = native.slots_added(pod)
    requesting = [
        (place, dialect)
        for place in each_container(pod)
        if (dialect := _dialect_of(place, config)) is not None
        # A recorded container asks by the pod's claim; its count is the slot that admission added.
        and not (dialect.in_slots and place.name in recorded)
    ]
    if named is not None:
        if requesting:
            raise BadInput.forbidden(
                f"{requesting[0][0].path}.resources",
                "the pod names a claim, and the claim's requests are what each container gets",
            )
        return PodDemand(native=named, containers=recorded)
    slotless = {place.name for place, dialect in requesting if not dialect.in_slots}
    if any(name not in slotless for name in recorded):
        raise BadInput.forbidden(
            native.SLOTS_ADDED_FIELD, "admission alone writes it, on a pod that names a claim"
        )
    if not requesting:
        return None
    # Pods of one controller ask for the same, and parsing costs more than comparing.
    question = question_of(pod)
    demand = _ALIKE.known(question, config)
    if demand is None:
        demand = _made_for(pod, requesting, config)
        _ALIKE.remember(question, demand)
    return demand


def follows_labels(pod: Pod, config: ClusterConfig) -> bool:
    """Return True if node labels select the preferred devices, as for pods in ACK's dialect.

    A policy in the pod takes precedence.
    """
    if pod.metadata.annotations.get(names.HAMI_DEVICE_POLICY, "").strip(" ,"):
        return False
    if names.ANNOTATION_RESOURCES in pod.metadata.annotations:
        pod = restored(pod, config)
    spoken = (_dialect_of(place, config) for place in each_container(pod))
    return next((dialect for dialect in spoken if dialect is not None), None) is ack.DIALECT


def _made_for(
    pod: Pod, requesting: list[tuple[PodContainer, ResourceDialect]], config: ClusterConfig
) -> PodDemand:
    """Return the demand of a pod whose containers request resources."""
    _refuse_bad_names([place for place, _ in requesting], pod)
    for place, dialect in requesting:
        _refuse_two_vendors(place, dialect, config)
    spec = VGPUClaimSpec(
        requests=[dialect.request(pod, place, config) for place, dialect in requesting],
        placement=_with_numa(pod, requesting[0][1].placement(pod)),
    )
    _refuse_long_selectors(spec)
    return PodDemand(
        spec=spec,
        containers=tuple(request.name for request in spec.requests),
        slotless=tuple(place.name for place, dialect in requesting if not dialect.in_slots),
        kinds=ack.node_kinds(pod, config),
        by_labels=follows_labels(pod, config),
    )


def _with_numa(pod: Pod, placement: Placement | None) -> Placement | None:
    """Apply Alibaba's NUMA annotation to the placement. HAMi's `numa-bind` is stricter and wins."""
    spec = numa_spec(pod)
    if spec is None or (placement is not None and placement.numa == "Require"):
        return placement
    return (placement or Placement()).model_copy(update={"numa": spec.policy})


def _refuse_long_selectors(spec: VGPUClaimSpec) -> None:
    """Refuse selectors that are too long, because each request of the claim repeats them."""
    size = 0
    for request in spec.requests:
        if (found := request.selector) is not None:
            words = [found.models, found.exclude_models, found.uuids, found.exclude_uuids]
            for kind in found.kinds:
                words += [kind.model_names, kind.exclude_model_names]
            size += sum(len(word.encode()) for some in words for word in some)
    if size > _MAX_SELECTORS:
        raise BadInput(
            field="metadata.annotations",
            fault=Fault.TOO_LONG,
            detail=f"{size} bytes of models and UUIDs in {len(spec.requests)} requests, may not be "
            f"more than {_MAX_SELECTORS} bytes",
        )


def _dialect_of(place: PodContainer, config: ClusterConfig) -> ResourceDialect | None:
    resources = place.container.resources
    if not any("/" in name for name in (*resources.limits, *resources.requests)):
        return None  # most containers request no extended resource at all
    return next((d for d in dialects() if d.applies(place.container, config)), None)


def _refuse_two_vendors(
    place: PodContainer, dialect: ResourceDialect, config: ClusterConfig
) -> None:
    """Refuse a container with two kinds of devices, because a request is for one kind."""
    for other in dialects():
        if other.vendor != dialect.vendor and other.applies(place.container, config):
            count = other.resource_names(config)[0]
            raise BadInput.forbidden(
                place.resource_path(count),
                f"the container asks for {dialect.resource_names(config)[0]}, and has devices of "
                "one kind; ask for the others in another container of the pod",
            )


def _refuse_bad_names(places: list[PodContainer], pod: Pod) -> None:
    """Refuse duplicate container names, because requests are matched to containers by name."""
    if len(places) > MAX_REQUESTS:
        raise BadInput.too_many(
            "spec.containers", len(places), MAX_REQUESTS, "containers that ask for a GPU"
        )
    named: dict[str, list[PodContainer]] = {}
    for place in each_container(pod):
        named.setdefault(place.name, []).append(place)
    for place in places:
        if not place.name or len(place.name) > _MAX_NAME or len(named[place.name]) > 1:
            raise BadInput(
                field=f"{named[place.name][-1].path}.name",
                value=place.name,
                expected="1 to 63 characters and the name of one container only",
            )
