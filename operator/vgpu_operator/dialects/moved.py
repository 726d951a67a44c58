"""Amounts that admission has moved from a pod's resources to an annotation.

kube-scheduler can leave resources that no node lists to the extender. Without an extender
(`scheduling.mode: Gate`), it would find no node for such a pod. Admission therefore moves these
amounts to the annotation `vgpu.dev/resources`, and we read them as if they were still in the
container. In Claims mode the pod references a ResourceClaim and no device plugin is involved, so
the device count is moved as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_api.errors import BadInput
from vgpu_api.vendors import kinds
from vgpu_operator.dialects.resource_claims import claim_of_pod, is_of_scheduler

FIELD = f"metadata.annotations[{names.ANNOTATION_RESOURCES}]"
_EXPECTED = "amounts by container, as JSON: admission writes it, leave it out"

Amounts = Mapping[str, str | int]


def movable(config: ClusterConfig, *, has_claim: bool) -> frozenset[str]:
    """Return the resources that are moved: all of ours that no device plugin allocates.

    Args:
        config: The resource names.
        has_claim: True if a ResourceClaim takes the place of our own device plugin.
    """
    counted = {name for kind in kinds() for name in kind.requested_by}
    managed = config.managed_resources()
    return frozenset(name for name in managed if managed[name] or has_claim) - counted


def moved(pod: Pod, config: ClusterConfig) -> dict[str, dict[str, str | int]]:
    """Return the amounts in the annotation, by container.

    Raises:
        BadInput: The value is not JSON of that form, or names an unknown container or resource.
    """
    text = pod.metadata.annotations.get(names.ANNOTATION_RESOURCES)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(field=FIELD, value=text, expected=_EXPECTED) from error
    if not isinstance(found, dict):
        raise BadInput(field=FIELD, value=text, expected=_EXPECTED)
    known = {container.name for container in _containers(pod)}
    words = movable(config, has_claim=is_of_scheduler(pod) or bool(claim_of_pod(pod)))
    for name, amounts in found.items():
        if name not in known:
            raise BadInput.unsupported(FIELD, name, sorted(known))
        if not isinstance(amounts, dict) or not all(map(_is_amount, amounts.values())):
            raise BadInput(field=FIELD, value=text, expected=_EXPECTED)
        for word in amounts:
            if word not in words:
                raise BadInput.unsupported(FIELD, word, sorted(words))
    return found


def restored(pod: Pod, config: ClusterConfig) -> Pod:
    """Return the pod with the moved amounts back in its containers' limits.

    Raises:
        BadInput: As for `moved`, or a container has a different amount of the same resource.
    """
    amounts = moved(pod, config)
    if not amounts:
        return pod
    spec = pod.spec.model_copy(
        update={
            "containers": [_with(each, amounts) for each in pod.spec.containers],
            "init_containers": [_with(each, amounts) for each in pod.spec.init_containers],
        }
    )
    return pod.model_copy(update={"spec": spec})


def _containers(pod: Pod) -> list[Container]:
    return [*pod.spec.init_containers, *pod.spec.containers]


def _is_amount(value: object) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _with(container: Container, moved_: Mapping[str, Amounts]) -> Container:
    amounts = moved_.get(container.name)
    if not amounts:
        return container
    for word, amount in amounts.items():
        given = container.requested(word)
        if given is not None and str(given) != str(amount):
            raise BadInput(
                field=FIELD,
                value=f"{word}: {amount}",
                detail=f"container {container.name!r} asks for {given} itself: leave this out",
            )
    limits = {**amounts, **container.resources.limits}
    resources = container.resources.model_copy(update={"limits": limits})
    return container.model_copy(update={"resources": resources})
