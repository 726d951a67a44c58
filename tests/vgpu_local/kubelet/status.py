"""Computes a pod's status from the states of its containers, as a kubelet does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vgpu_local.kubelet.podspec import Container, Pod
from vgpu_local.podwriter import merge_conditions

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The state of a container that waits for its next start."""

    reason: str = "ContainerCreating"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """The state of a container whose process is running."""

    started_at: str


@dataclass(frozen=True, slots=True)
class Terminated:
    """The state of a container whose process has ended."""

    exit_code: int
    started_at: str
    finished_at: str

    @property
    def reason(self) -> str:
        """Return the reason that `kubectl get pods` shows."""
        return "Completed" if self.exit_code == 0 else "Error"


State = Waiting | Running | Terminated


@dataclass(slots=True)
class ContainerRecord:
    """One container as its pod's worker knows it.

    Attributes:
        last: The end of its previous process.
        not_before: The loop time before which it is not started again.
        failing: True if the last start failed, so that any change of the pod retries it.
    """

    container: Container
    state: State
    last: Terminated | None = None
    restarts: int = 0
    container_id: str = ""
    not_before: float = 0.0
    failing: bool = False


def phase_of(
    pod: Pod,
    inits: Sequence[ContainerRecord],
    apps: Sequence[ContainerRecord],
    *,
    terminal: bool = False,
) -> Phase:
    """Return the phase by the kubelet's rules.

    Args:
        pod: The pod.
        inits: Its init containers.
        apps: Its app containers.
        terminal: True if nothing will be started any more, whatever the restart policy.
    """
    if terminal:
        return "Succeeded" if apps and all(_succeeded(record) for record in apps) else "Failed"
    ordinary = [record for record in inits if not record.container.restartable]
    if pod.restart_policy == "Never" and any(_failed(record) for record in ordinary):
        return "Failed"
    if not initialized(inits) or any(_never_ran(record) for record in apps):
        return "Pending"
    if not all(isinstance(record.state, Terminated) for record in apps):
        return "Running"
    if pod.restart_policy == "Always":
        return "Running"
    if not any(_failed(record) for record in apps):
        return "Succeeded"
    return "Failed" if pod.restart_policy == "Never" else "Running"


def initialized(inits: Sequence[ContainerRecord]) -> bool:
    """Return True if all ordinary init containers have succeeded and all sidecars have started."""
    return all(
        not _never_ran(record) if record.container.restartable else _succeeded(record)
        for record in inits
    )


def pod_status(
    pod: Pod,
    inits: Sequence[ContainerRecord],
    apps: Sequence[ContainerRecord],
    *,
    start_time: str,
    now: str,
    conditions: Sequence[Mapping[str, Any]],
    terminal: bool,
    devices: Mapping[str, Mapping[str, Mapping[str, bool]]],
) -> dict[str, Any]:
    """Return the status of a pod that was admitted.

    Args:
        pod: The pod.
        inits: Its init containers.
        apps: Its app containers.
        start_time: The time at which the kubelet first saw it.
        now: The current time, for conditions that change.
        conditions: Its current conditions; those of other writers are kept.
        terminal: True if the pod is ending and nothing will be started any more.
        devices: By container and resource, its devices with True for each healthy one. They are
            shown for app containers only (KEP-4680).
    """
    phase = phase_of(pod, inits, apps, terminal=terminal)
    over = phase in ("Succeeded", "Failed")
    unready = [r.container.name for r in apps if not isinstance(r.state, Running)]
    ready = not unready and not over
    why = {
        "reason": {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(
            phase, "ContainersNotReady"
        ),
        "message": "" if over else f"containers with unready status: [{' '.join(unready)}]",
    }
    incomplete = [r.container.name for r in inits if not initialized([r])]
    not_initialized = {
        "reason": "ContainersNotInitialized",
        "message": f"containers with incomplete status: [{' '.join(incomplete)}]",
    }
    wanted: list[dict[str, Any]] = [
        _condition("PodScheduled", True, {}),
        _condition("Initialized", not incomplete, not_initialized),
        _condition("ContainersReady", ready, why),
        _condition("Ready", ready, why),
    ]
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": merge_conditions(conditions, wanted, now),
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "startTime": start_time,
        "containerStatuses": [
            {**_container_status(record), **_health(devices.get(record.container.name, {}))}
            for record in apps
        ],
    }
    if inits:
        status["initContainerStatuses"] = [_container_status(record) for record in inits]
    return status


def refused_status(reason: str, message: str, *, start_time: str) -> dict[str, Any]:
    """Return the status of a pod that this node does not admit."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": start_time,
    }


def _condition(kind: str, holds: bool, otherwise: Mapping[str, str]) -> dict[str, Any]:
    if holds:
        return {"type": kind, "status": "True"}
    return {"type": kind, "status": "False", **{k: v for k, v in otherwise.items() if v}}


def _container_status(record: ContainerRecord) -> dict[str, Any]:
    running = isinstance(record.state, Running)
    return {
        "name": record.container.name,
        "image": record.container.image,
        "imageID": record.container.image,
        "ready": running or (record.container.restartable is False and _succeeded(record)),
        "started": running,
        "restartCount": record.restarts,
        "containerID": record.container_id,
        "state": _state(record.state, record.container_id),
        "lastState": _state(record.last, record.container_id) if record.last else {},
    }


def _health(devices: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
    """Return the fields of a container's status about its devices' health; empty without any."""
    if not devices:
        return {}
    return {
        "allocatedResourcesStatus": [
            {
                "name": resource,
                "resources": [
                    {"resourceID": device, "health": "Healthy" if healthy else "Unhealthy"}
                    for device, healthy in sorted(of_resource.items())
                ],
            }
            for resource, of_resource in sorted(devices.items())
        ]
    }


def _state(state: State, container_id: str) -> dict[str, Any]:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(started_at):
            return {"running": {"startedAt": started_at}}
        case Terminated(exit_code, started_at, finished_at):
            return {
                "terminated": {
                    "exitCode": exit_code,
                    "reason": state.reason,
                    "startedAt": started_at,
                    "finishedAt": finished_at,
                    "containerID": container_id,
                }
            }


def _succeeded(record: ContainerRecord) -> bool:
    return isinstance(record.state, Terminated) and record.state.exit_code == 0


def _failed(record: ContainerRecord) -> bool:
    return isinstance(record.state, Terminated) and record.state.exit_code != 0


def _never_ran(record: ContainerRecord) -> bool:
    return isinstance(record.state, Waiting) and record.last is None
