"""Warns about misspelt names, schedulers that do not call us, and claims that do not exist.

Such a pod is admitted with a warning, which kubectl prints. Otherwise its author would not learn
why the pod stays pending, or runs without a GPU.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.vendors import kinds
from vgpu_operator.admission.rules.denial import denying
from vgpu_operator.admission.rules.raw_pod import read_pod
from vgpu_operator.dialects import native, read
from vgpu_operator.dialects.containers import each_container
from vgpu_operator.dialects.hami_annotations import annotation_field
from vgpu_operator.dialects.reading import is_left_alone

ANNOTATION_PREFIXES = (
    "nvidia.com/",
    "hami.io/",
    f"{names.GROUP}/",
    "volcano.sh/vgpu",
    names.ACK_NUMA_SPEC.partition("-")[0],
)
RESOURCE_PREFIXES = ("nvidia.com/", "aliyun.com/gpu", "volcano.sh/vgpu", f"{names.GROUP}/")

_MOST = 8
_NEAR = 0.75
_LONGEST = 96


@dataclass(frozen=True, slots=True)
class _Near:
    """A valid name that resembles an invalid one."""

    name: str
    kind: str


def misspelt(raw_pod: dict[str, Any], config: ClusterConfig) -> list[str]:
    """Return a warning for each name in a pod that resembles one of ours, at most eight.

    The prefix `vgpu.dev/` is ours, so every unknown name with it gets a warning. Other prefixes
    have other users, such as NVIDIA's own `nvidia.com/mig-1g.5gb`, so only names that resemble ours
    get one.

    Raises:
        Denied: The pod is invalid.
    """
    with denying():
        pod = read_pod(raw_pod)
    found = [*_resources(pod, config), *_annotations(pod, config)]
    more = [f"and {len(found) - _MOST} more unknown names"] if len(found) > _MOST else []
    return [*found[:_MOST], *more]


def unasked(raw_pod: dict[str, Any], config: ClusterConfig) -> list[str]:
    """Return a warning for a pod that requests a GPU but names a scheduler that may not call us.

    Raises:
        Denied: The pod or its request is invalid.
    """
    with denying():
        pod = read_pod(raw_pod)
        if config.scheduling.decides_first:
            return []  # with a gate, the scheduler's name does not matter
        ours, chosen = config.scheduling.scheduler_name, pod.spec.scheduler_name
        if not ours or not chosen or chosen in {ours, *names.SCHEDULER_ALIASES}:
            return []  # checked first, because nearly every such pod names our scheduler
        demand = None if is_left_alone(pod) else read(pod, config)
    if demand is None:
        return []
    found = [
        f"spec.schedulerName: {_shortened(chosen)}: the pod gets a GPU only if this scheduler "
        f"calls the extender of vgpu, as {ours} does"
    ]
    if demand.native is None and names.VOLCANO_GROUP in pod.metadata.annotations:
        found.append(
            f"{annotation_field(names.VOLCANO_GROUP)}: Volcano counts every resource of a "
            "container against its node's, and a node shows the number of GPUs alone: where memory "
            f"or compute is asked for, name a {names.ANNOTATION_CLAIM_TEMPLATE} instead"
        )
    return found


def waits_for_claim(raw_pod: dict[str, Any]) -> list[str]:
    """Return a warning for a pod whose claim does not exist yet.

    Args:
        raw_pod: The pod after mutation, with the record of its slots.

    Raises:
        Denied: The pod is invalid.
    """
    with denying():
        pod = read_pod(raw_pod)
        named = native.named_claim(pod)
    if named is None:
        return []
    slots = native.slots_added(pod)
    several = "; until then each of its containers has a slot" if len(slots) > 1 else ""
    return [
        f"{native.claim_field(named)}: {_shortened(named.name)} does not exist yet: the pod waits "
        f"for it{several}"
    ]


def _resources(pod: Pod, config: ClusterConfig) -> Iterator[str]:
    known = config.managed_resources()
    for place in each_container(pod):
        amounts = place.container.resources
        for name in dict.fromkeys([*amounts.limits, *amounts.requests]):
            if name in known or not name.startswith(RESOURCE_PREFIXES):
                continue
            warning = _warning(name, "resource", config)
            if warning:
                section = "limits" if name in amounts.limits else "requests"
                yield f"{place.path}.resources.{section}[{_shortened(name)}]: {warning}"


def _annotations(pod: Pod, config: ClusterConfig) -> Iterator[str]:
    others = {key for kind in kinds() for key in kind.annotations}
    for name in pod.metadata.annotations:
        if name in names.POD_ANNOTATIONS or name in names.POD_RECORDS or name in others:
            continue
        is_near = name.startswith(ANNOTATION_PREFIXES)
        warning = _warning(name, "annotation", config) if is_near else ""
        if warning:
            yield f"{annotation_field(_shortened(name))}: {warning}"


def _warning(name: str, kind: str, config: ClusterConfig) -> str:
    """Describe the mistake in an unknown name; empty if the name is probably not meant for us."""
    near = _nearest(name, kind, config)
    if near is not None:
        what = near.name if near.kind == kind else f"the {near.kind} {near.name}"
        return f"vgpu has no such {kind}: did you mean {what}?"
    prefix = f"{names.GROUP}/"
    if name.startswith(prefix):
        ours = (key.removeprefix(prefix) for key in names.POD_ANNOTATIONS if prefix in key)
        return f"vgpu has no such {kind}: a pod's annotations are {prefix} and {', '.join(ours)}"
    return ""


def _nearest(name: str, kind: str, config: ClusterConfig) -> _Near | None:
    """Return the most similar valid name, preferably with the same prefix."""
    known = {"resource": tuple(config.managed_resources()), "annotation": names.POD_ANNOTATIONS}
    of_kinds = sorted(known, key=lambda of_kind: of_kind != kind)
    every = [_Near(right, of_kind) for of_kind in of_kinds for right in known[of_kind]]
    if exact := next((near for near in every if near.name == name), None):
        return exact  # the valid name, used in the wrong place
    prefix = name.partition("/")[0]
    of_its_prefix = [near for near in every if near.name.startswith(f"{prefix}/")]
    return _best(name, of_its_prefix) or _best(name, every)


def _best(name: str, candidates: Sequence[_Near]) -> _Near | None:
    near = max(candidates, key=lambda near: _likeness(name, near.name), default=None)
    return near if near is not None and _likeness(name, near.name) >= _NEAR else None


def _likeness(wrong: str, right: str) -> float:
    """Return the similarity, from 0 to 1, of the parts after the slash."""
    mine, its = (text[:_LONGEST].partition("/")[2] for text in (wrong, right))
    return difflib.SequenceMatcher(None, mine, its, autojunk=False).ratio()


def _shortened(text: str) -> str:
    """Shorten a name, because Kubernetes truncates long warnings."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
