"""Reports ConfigMaps of ours that are wrong or have keys without effect.

The webhook refuses a wrong one, but it is ignored while it is down (`failurePolicy: Ignore`).
Programs log a configuration that they cannot use. An event on the ConfigMap is where its author
looks first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import kopf

from vgpu_api.resources import CONFIG_MAPS
from vgpu_client.recorder import Recorder, Regarding
from vgpu_operator.admission.rules import Denied, validate_configuration

NAMES = "vgpu-config"
"""The prefix of our ConfigMaps' names, as in the webhook's condition. Kustomize adds a hash."""
INVALID = "ConfigMapInvalid"
WARNING = "ConfigMapWarning"


@dataclass(frozen=True, slots=True)
class ConfigurationEvent:
    """The event that a ConfigMap needs."""

    reason: str
    note: str


def event_about(config_map: dict[str, Any]) -> ConfigurationEvent | None:
    """Return the event about a ConfigMap; None if it is valid, or does not configure the operator.

    Args:
        config_map: The object as the API server shows it.
    """
    if not config_map["metadata"]["name"].startswith(NAMES):
        return None
    try:
        warnings = validate_configuration(config_map)
    except Denied as denied:
        note = f"running programs keep the former configuration: {denied.message}"
        return ConfigurationEvent(INVALID, note)
    return ConfigurationEvent(WARNING, "; ".join(warnings)) if warnings else None


def register(
    registry: kopf.OperatorRegistry, recorder: Recorder, leaders: asyncio.AbstractEventLoop
) -> None:
    """Register the handler.

    Args:
        registry: The registry of Kopf, which runs in a thread of its own.
        recorder: Writes the events.
        leaders: The event loop of the recorder.
    """

    @kopf.on.event(CONFIG_MAPS.group, CONFIG_MAPS.version, CONFIG_MAPS.plural, registry=registry)
    async def report(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - Kopf's
        event = None if type == "DELETED" else event_about(dict(body))
        if event is not None:
            leaders.call_soon_threadsafe(
                partial(
                    recorder.record,
                    _regarding(body),
                    type="Warning",
                    reason=event.reason,
                    action="Validate",
                    note=event.note,
                )
            )


def _regarding(body: kopf.Body) -> Regarding:
    metadata = body["metadata"]
    return Regarding(
        "v1", CONFIG_MAPS.kind, metadata["namespace"], metadata["name"], metadata["uid"]
    )
