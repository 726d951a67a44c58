"""Events as `kubectl describe` shows them, written next to their objects."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Literal

from vgpu_api.resources import EVENTS
from vgpu_client.api import Api
from vgpu_client.transport import Object

_MESSAGE_KEPT = 1024


async def create_event(
    api: Api,
    regarding: Object,
    *,
    type: Literal["Normal", "Warning"],  # noqa: A002 - the field's name
    reason: str,
    message: str,
    component: str,
    now: datetime,
) -> None:
    """Write an event about an object.

    Args:
        api: The API server to write to.
        regarding: The object, with `apiVersion`, `kind` and `metadata`.
        type: Normal or Warning.
        reason: One CamelCase word.
        message: A sentence; cut after 1024 characters, the server's limit.
        component: The reporting component.
        now: The time of the event.
    """
    metadata = regarding["metadata"]
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event: Object = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": metadata.get("namespace") or "default",
            "name": f"{metadata['name'][:230]}.{secrets.token_hex(8)}",
        },
        "involvedObject": {
            "apiVersion": regarding["apiVersion"],
            "kind": regarding["kind"],
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": type,
        "reason": reason,
        "message": message[:_MESSAGE_KEPT],
        "source": {"component": component},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
    if metadata.get("namespace"):
        event["involvedObject"]["namespace"] = metadata["namespace"]
    await api.create(EVENTS, event)
