"""Telling the API server about pods, as scheduler and kubelet do: status, events, the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError, Conflict, NotFound
from vgpu_client.event import create_event
from vgpu_client.transport import Object

log = logging.getLogger(__name__)

Compose = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]
"""Makes a status of the conditions that the pod has."""


def timestamp() -> str:
    """Return the present moment as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge_conditions(
    before: Sequence[Mapping[str, Any]], wanted: Sequence[dict[str, Any]], now: str
) -> list[dict[str, Any]]:
    """Set some conditions by type; keep all others, and the time of those that did not change."""
    old = {condition["type"]: condition for condition in before}
    mine = {condition["type"] for condition in wanted}
    merged = [dict(condition) for condition in before if condition["type"] not in mine]
    for condition in wanted:
        previous = old.get(condition["type"])
        unchanged = previous is not None and previous.get("status") == condition["status"]
        since = previous.get("lastTransitionTime", now) if previous and unchanged else now
        merged.append({**condition, "lastTransitionTime": since})
    return merged


class PodWriter:
    """Writes as one component of the cluster."""

    def __init__(self, api: Api, component: str) -> None:
        """Write through `api`; events name `component` as their source."""
        self._api = api
        self._component = component

    async def write_status(self, pod: Object, compose: Compose) -> Object | None:
        """Bring the status up to date, on top of whatever others wrote into it.

        Args:
            pod: the newest known version.
            compose: called again with fresh conditions when that version was stale.

        Returns:
            The pod as it is now, or None when it is gone.

        Raises:
            ClientError: the API server did not take it; to be tried again.
        """
        while True:
            before = pod.get("status") or {}
            status = compose(before.get("conditions") or ())
            if all(before.get(key) == value for key, value in status.items()):
                return pod
            try:
                return await self._api.replace(
                    PODS, {**pod, "status": {**before, **status}}, subresource="status"
                )
            except NotFound:
                return None
            except Conflict:
                found = await self._now(pod)
                if found is None:
                    return None
                pod = found

    async def event(
        self, pod: Object, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Write an event; one that cannot be written is lost, as events are."""
        try:
            await create_event(
                self._api,
                {"apiVersion": "v1", "kind": "Pod", **pod},
                type=kind,
                reason=reason,
                message=message,
                component=self._component,
                now=datetime.now(UTC),
            )
        except ClientError as error:
            log.info("event %s of %s not written: %s", reason, pod["metadata"]["name"], error)

    async def remove(self, pod: Object) -> None:
        """Delete a pod whose containers have all ended.

        Raises:
            ClientError: the API server did not take it; to be tried again.
        """
        metadata = pod["metadata"]
        try:
            await self._api.delete(
                PODS,
                metadata["name"],
                namespace=metadata["namespace"],
                uid=metadata["uid"],
                grace_s=0,
            )
        except NotFound:
            return  # another writer was faster
        except Conflict:
            if await self._now(pod) is not None:
                raise

    async def _now(self, pod: Object) -> Object | None:
        """The pod as it is now; None when it is gone, and perhaps another has its name."""
        metadata = pod["metadata"]
        try:
            found = await self._api.get(PODS, metadata["name"], namespace=metadata["namespace"])
        except NotFound:
            return None
        return found if found["metadata"]["uid"] == metadata["uid"] else None
