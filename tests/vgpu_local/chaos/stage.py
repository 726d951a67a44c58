"""The stage of a campaign's scenarios: a user who retries until an action succeeds."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vgpu_api.resources import (
    NAMESPACES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.errors import AlreadyExists, ApiError, ClientError, Forbidden, Invalid, NotFound
from vgpu_client.transport import Object
from vgpu_local.chaos import pods
from vgpu_local.chaos.pods import NAMESPACE, Shape
from vgpu_local.chaos.sightings import Sightings

_AGAIN_S = 0.15
_LOOK_S = 0.05
_INJECTED = "injected fault"


class Refused(Exception):
    """The API server refused an action, and not because of an injected fault."""


class Stage:
    """A user of the cluster; all methods belong to the cluster's loop.

    Attributes:
        pods: The number of pods that were created.
        claims: The number of claims that were created.
        taken_away: How often the allocation of a ResourceClaim was taken away.
        staying: The names of pods that must run at the end.
        hopeless: The names of pods that fit nowhere and must not run.
        sightings: The current pods and claims.
        deleted: The names of pods whose deletion was asked for.
        has_ranks: True if the cluster takes priorities without PriorityClasses, and serves groups.
        pace: The factor by which everything is slower than on a quiet machine.
        enough: Set when no more faults will come, so that scenarios may end.
        findings: A text for each refusal that should not have happened.
    """

    def __init__(
        self,
        api: Api,
        sightings: Sightings,
        records: Path,
        *,
        has_ranks: bool = False,
        pace: float = 1.0,
    ) -> None:
        self.pods = 0
        self.claims = 0
        self.taken_away = 0
        self.staying: set[str] = set()
        self.hopeless: set[str] = set()
        self.findings: list[str] = []
        self.deleted: set[str] = set()
        self.has_ranks = has_ranks
        self.sightings = sightings
        self.pace = pace
        self.enough = threading.Event()
        self._api = api
        self._records = records

    async def namespace(self, name: str) -> None:
        """Create a namespace.

        Raises:
            Refused: it is not wanted.
        """
        await self._create(NAMESPACES, {"metadata": {"name": name}})

    async def pod(self, name: str, shape: Shape, *, namespace: str = NAMESPACE) -> str:
        """Create a pod; return its UID.

        Raises:
            Refused: it is not wanted.
        """
        if not self.has_ranks:
            shape = replace(shape, priority=0)
        if namespace == NAMESPACE:
            self.deleted.discard(name)
        created = await self._create(
            PODS, pods.pod(name, shape, self._records, namespace=namespace)
        )
        self.pods += 1
        return str(created["metadata"]["uid"])

    async def group(self, name: str, least: int) -> None:
        """Create a PodGroup.

        Raises:
            Refused: it is not wanted.
        """
        await self._create(POD_GROUPS[0], pods.pod_group(name, least))

    async def claim(self, claim: Object) -> str:
        """Create a claim; return its UID.

        Raises:
            Refused: it is not wanted.
        """
        created = await self._create(VGPU_CLAIMS, claim)
        self.claims += 1
        return str(created["metadata"]["uid"])

    async def edit(self, resource: Resource, name: str, changes: Mapping[str, Any]) -> bool:
        """Change an object; return False if it is gone or must not be changed like this."""
        while True:
            try:
                await self._api.merge_patch(resource, name, changes, namespace=NAMESPACE)
                return True
            except ClientError as error:
                if isinstance(error, NotFound) or _is_final(error):
                    return False
            await asyncio.sleep(_AGAIN_S)

    async def delete(self, resource: Resource, name: str, *, force: bool = False) -> None:
        """Delete an object, at once if `force` is set."""
        if resource is PODS:
            self.deleted.add(name)
        while True:
            try:
                await self._api.delete(
                    resource, name, namespace=_home(resource), grace_s=0 if force else None
                )
                return
            except NotFound:
                return
            except ClientError:
                await asyncio.sleep(_AGAIN_S)

    async def take_away(self, name: str) -> None:
        """Take the allocation of an unreserved ResourceClaim away, as kube-scheduler does."""
        found = await self.read(RESOURCE_CLAIMS, name)
        status = (found or {}).get("status") or {}
        if found is None or "allocation" not in status or status.get("reservedFor"):
            return
        version = {
            "path": "/metadata/resourceVersion",
            "value": found["metadata"]["resourceVersion"],
        }
        patch = [{"op": "test", **version}, {"op": "remove", "path": "/status/allocation"}]
        with contextlib.suppress(ClientError):  # it is tried again
            await self._api.json_patch(
                RESOURCE_CLAIMS, name, patch, namespace=NAMESPACE, subresource="status"
            )
            self.taken_away += 1

    async def gone(self, name: str, uid: str) -> None:
        """Wait until the pod is gone."""
        while True:
            seen = self.sightings.pod(name)
            if seen is None or seen.uid != uid:
                return
            await asyncio.sleep(_LOOK_S)

    async def runs(self, name: str, *, within: float = float("inf")) -> bool:
        """Wait until a pod runs or has run, and return True.

        Return False if a kubelet refused to admit it, or it did not run in time; `within` is in
        seconds on a quiet machine.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within * self.pace
        while loop.time() < deadline:
            seen = self.sightings.pod(name)
            if seen is not None and seen.reason == "UnexpectedAdmissionError":
                return False
            if seen is not None and seen.phase not in ("", "Pending"):
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def namespace_is_gone(self, name: str) -> None:
        """Wait until the namespace is gone."""
        while True:
            if await self.read(NAMESPACES, name, namespace=None) is None:
                return
            await asyncio.sleep(_AGAIN_S)

    async def read(
        self, resource: Resource, name: str, *, namespace: str | None = NAMESPACE
    ) -> Object | None:
        """Return the object, or None."""
        while True:
            try:
                return await self._api.get(resource, name, namespace=namespace)
            except NotFound:
                return None
            except ClientError:
                await asyncio.sleep(_AGAIN_S)

    async def _create(self, resource: Resource, obj: Object) -> Object:
        """Create an object, after waiting for a former one of its name to be gone."""
        unsure = False
        while True:
            try:
                return await self._api.create(resource, obj)
            except AlreadyExists:
                # Perhaps it is ours: an answer was lost.
                space = obj["metadata"].get("namespace")
                found = await self.read(resource, obj["metadata"]["name"], namespace=space)
                if unsure and found and not found["metadata"].get("deletionTimestamp"):
                    return found
            except ClientError as error:
                if _is_final(error):
                    raise Refused(str(error)) from error
                unsure = True
            await asyncio.sleep(_AGAIN_S)


def _home(resource: Resource) -> str | None:
    return NAMESPACE if resource.namespaced else None


def _is_final(error: ClientError) -> bool:
    """Return True if a retry is useless, which it is not for webhooks that are down."""
    if not isinstance(error, ApiError) or error.message == _INJECTED:
        return False
    return isinstance(error, Forbidden | Invalid) or error.status == 400
