"""Writes pods' status, events and deletions to the API server, as scheduler and kubelet do."""

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
"""Returns a status, given the pod's current conditions."""


def timestamp() -> str:
    """Return the current time in the API's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge_conditions(
    before: Sequence[Mapping[str, Any]], wanted: Sequence[dict[str, Any]], now: str
) -> list[dict[str, Any]]:
    """Set some conditions by type; keep the others, and the times of those that did not change."""
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
    """A writer of pods on behalf of one component of the cluster."""

    def __init__(self, api: Api, component: str) -> None:
        """Create a writer whose events name `component` as their source."""
        self._api = api
        self._component = component

    async def write_status(self, pod: Object, compose: Compose) -> Object | None:
        """Update the status, and keep what others wrote into it.

        Args:
            pod: The newest known version.
            compose: Returns the status; called again with new conditions if the version was stale.

        Returns:
            The current pod, or None if it is gone.

        Raises:
            ClientError: The API server did not accept it; try again.
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
        """Write an event; it is lost if it cannot be written."""
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
            ClientError: The API server did not accept it; try again.
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
        """Return the current pod; None if it is gone, even if another pod has its name."""
        metadata = pod["metadata"]
        try:
            found = await self._api.get(PODS, metadata["name"], namespace=metadata["namespace"])
        except NotFound:
            return None
        return found if found["metadata"]["uid"] == metadata["uid"] else None
