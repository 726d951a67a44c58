"""The part of a pod that a kubelet acts on, parsed once from the API's JSON.

The stand-in kubelet uses these values only. So the fields here show what it supports; anything else
(volumes, probes, images) has no effect on a simulated node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vgpu_api.quantity import whole

RestartPolicy = Literal["Always", "OnFailure", "Never"]


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One environment variable: a string with `$(NAME)` references, or a field of the pod."""

    name: str
    value: str
    field_path: str | None = None
    unsupported: str | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod.

    Attributes:
        devices: The requested number of each extended resource (a name with a slash).
        restartable: True for a sidecar: an init container with `restartPolicy: Always`.
        claims: The entries of the pod's `claims` that it uses, each with the request, or "" for
            all requests.
    """

    name: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    devices: tuple[tuple[str, int], ...] = ()
    image: str = ""
    restartable: bool = False
    claims: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as its kubelet sees it; versions are equal if the kubelet need not act.

    Attributes:
        claims: The ResourceClaims that it names, each with the name of its entry in front.
    """

    uid: str
    name: str
    namespace: str
    node: str
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    init_containers: tuple[Container, ...]
    containers: tuple[Container, ...]
    restart_policy: RestartPolicy
    deletion_timestamp: str | None
    grace_seconds: float
    claims: tuple[tuple[str, str], ...] = ()

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Return all containers in the order of allocation: init containers first."""
        return self.init_containers + self.containers


def parse_pod(pod: Mapping[str, Any]) -> Pod:
    """Read a pod object of the API.

    Raises:
        KeyError: the object has no metadata.uid or no name: it never was on an API server.
        QuantityError: an extended resource is not a whole number.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    grace = metadata.get("deletionGracePeriodSeconds")
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds", 30)
    return Pod(
        uid=metadata["uid"],
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        node=spec.get("nodeName", ""),
        labels=_pairs(metadata.get("labels")),
        annotations=_pairs(metadata.get("annotations")),
        init_containers=_containers(spec.get("initContainers")),
        containers=_containers(spec.get("containers")),
        restart_policy=spec.get("restartPolicy", "Always"),
        deletion_timestamp=metadata.get("deletionTimestamp"),
        grace_seconds=float(grace),
        claims=tuple(
            (each["name"], each["resourceClaimName"])
            for each in spec.get("resourceClaims") or ()
            if each.get("resourceClaimName")
        ),
    )


def _pairs(mapping: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((mapping or {}).items()))


def _containers(items: Sequence[Mapping[str, Any]] | None) -> tuple[Container, ...]:
    return tuple(_container(item) for item in items or ())


def _container(item: Mapping[str, Any]) -> Container:
    resources = item.get("resources") or {}
    limits = resources.get("limits") or {}
    return Container(
        name=item["name"],
        command=tuple(item.get("command") or ()),
        args=tuple(item.get("args") or ()),
        env=tuple(_env_var(entry) for entry in item.get("env") or ())
        + tuple(EnvVar("envFrom", "", unsupported="envFrom") for _ in item.get("envFrom") or ()),
        devices=tuple(sorted((name, whole(v)) for name, v in limits.items() if _is_extended(name))),
        image=item.get("image", ""),
        restartable=item.get("restartPolicy") == "Always",
        claims=tuple((c["name"], c.get("request", "")) for c in resources.get("claims") or ()),
    )


def _is_extended(resource: str) -> bool:
    return "/" in resource and not resource.partition("/")[0].endswith("kubernetes.io")


def _env_var(entry: Mapping[str, Any]) -> EnvVar:
    source = entry.get("valueFrom")
    if not source:
        return EnvVar(entry["name"], entry.get("value") or "")
    if "fieldRef" in source:
        return EnvVar(entry["name"], "", field_path=source["fieldRef"]["fieldPath"])
    return EnvVar(entry["name"], "", unsupported=next(iter(source)))
