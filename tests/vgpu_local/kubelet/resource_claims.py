"""ResourceClaims as the kubelet has its DRA drivers prepare them.

The rules are those of pkg/kubelet/cm/dra at v1.36.3. A claim is prepared before the pod's sandbox
is made, and not again for the containers of that sandbox. It is on record, in `dra_manager_state`,
from before the driver is asked until it was unprepared, which is asked for until it succeeds once
no container of the pod runs. Whether a claim is prepared is in memory only, so a kubelet that was
started again asks again for the next sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

import grpc

from vgpu_api.resources import RESOURCE_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_client.transport import Object
from vgpu_local.kubelet.plugins import CHANNEL_OPTIONS
from vgpu_local.kubelet.podspec import Pod
from vgpu_nodeagent.kubelet.api import dra_pb2 as dra
from vgpu_nodeagent.kubelet.api import dra_pb2_grpc as dra_grpc
from vgpu_nodeagent.kubelet.api import pluginregistration_pb2 as reg
from vgpu_nodeagent.kubelet.api import pluginregistration_pb2_grpc as reg_grpc

RECORD = "dra_manager_state"
DEADLINE_S = 45.0
_LOOK_S = 0.1
_AGAIN_S = 0.3

log = logging.getLogger(__name__)

Made: TypeAlias = tuple[int, int]
"""A socket's inode and change time; a new socket may get the inode of the one before."""


class PrepareError(Exception):
    """A pod's claims cannot be prepared now; the text is that of the pod's event."""


@dataclass(slots=True)
class _Claim:
    """A claim on record.

    Attributes:
        driver: The driver of its devices.
        devices: The names of CDI devices by request; "" for a device of every request.
    """

    namespace: str
    name: str
    uid: str
    pod_uid: str
    driver: str
    is_prepared: bool = False
    devices: dict[str, list[str]] = field(default_factory=dict)

    @property
    def message(self) -> dra.Claim:
        """Return the claim as a driver is told of it."""
        return dra.Claim(namespace=self.namespace, uid=self.uid, name=self.name)


class ResourceClaims:
    """The claims of a node's pods, and the drivers that prepare them.

    Args:
        api: The kubelet's client.
        registry: The folder in which drivers put their sockets.
        record: The file of claims that have to be unprepared some time.
    """

    def __init__(self, api: Api, registry: Path, record: Path) -> None:
        self._api = api
        self._registry = registry
        self._record = record
        self._claims: dict[str, _Claim] = {}
        self._drivers: dict[Path, tuple[Made, str, str]] = {}
        """By socket: what tells it from others, the driver's name, the endpoint."""

    async def find_drivers(self) -> None:
        """Register each driver whose socket appears, for ever; forget it with its socket."""
        while True:
            sockets = dict(self._sockets())
            for path in self._drivers.keys() - sockets.keys():
                del self._drivers[path]
            for path, made in sockets.items():
                if self._drivers.get(path, (None,))[0] != made:
                    await self._register(path, made)
            await asyncio.sleep(_LOOK_S)

    def restarted(self) -> None:
        """Forget what is not on record, as the end of the kubelet's process does."""
        self._drivers.clear()
        for claim in self._claims.values():
            claim.is_prepared = False

    async def prepare(self, pod: Pod) -> None:
        """Prepare the claims of a pod whose sandbox is about to be made.

        Raises:
            PrepareError: Its containers must not start.
        """
        for _, name in pod.claims:
            claim = await self._on_record(pod, name)
            if claim is not None and not claim.is_prepared:
                await self._prepare(claim)

    async def unprepare(self, pod_uid: str) -> None:
        """Unprepare the claims of a pod whose containers have ended; wait until that succeeds."""
        for claim in [each for each in self._claims.values() if each.pod_uid == pod_uid]:
            while why := await self._unprepare(claim):
                log.info("claim %s is not unprepared: %s", claim.name, why)
                await asyncio.sleep(_AGAIN_S)
            self._claims.pop(claim.uid, None)  # it may have been force-deleted in the meantime
            self._write()

    def devices_of(self, pod: Pod, container: str) -> Iterator[str]:
        """Yield the names of the CDI devices of a container, in the order of its claims."""
        (found,) = (each for each in pod.all_containers if each.name == container)
        names = dict(pod.claims)
        for entry, request in found.claims:
            for claim in self._claims.values():
                if (claim.pod_uid, claim.name) != (pod.uid, names.get(entry)):
                    continue
                for of_request, devices in claim.devices.items():
                    if request in ("", of_request) or not of_request:
                        yield from devices

    # The steps

    async def _on_record(self, pod: Pod, name: str) -> _Claim | None:
        """Return a claim of a pod, which is on record then; None if it has no devices."""
        try:
            found = await self._api.get(RESOURCE_CLAIMS, name, namespace=pod.namespace)
        except ClientError as error:
            raise PrepareError(f"failed to fetch ResourceClaim {name}: {error}") from error
        uid, status = found["metadata"]["uid"], found.get("status") or {}
        if pod.uid not in {user["uid"] for user in status.get("reservedFor") or ()}:
            raise PrepareError(f"pod {pod.name} ({pod.uid}) is not allowed to use claim {name}")
        driver = _driver_of(status)
        if driver and uid not in self._claims:
            self._claims[uid] = _Claim(pod.namespace, name, uid, pod.uid, driver)
            self._write()
        return self._claims.get(uid)

    async def _prepare(self, claim: _Claim) -> None:
        request = dra.NodePrepareResourcesRequest(claims=[claim.message])
        try:
            async with self._channel(claim.driver) as channel:
                stub = dra_grpc.DRAPluginStub(channel)
                answer = await stub.NodePrepareResources(request, timeout=DEADLINE_S)
        except (grpc.aio.AioRpcError, LookupError) as error:
            raise PrepareError(f"NodePrepareResources failed: {_text(error)}") from error
        given = answer.claims[claim.uid]
        if given.error:
            raise PrepareError(f"NodePrepareResources failed for claim {claim.name}: {given.error}")
        claim.devices = {}
        for device in given.devices:
            for of_request in device.request_names or ("",):
                claim.devices.setdefault(of_request, []).extend(device.cdi_device_ids)
        claim.is_prepared = True

    async def _unprepare(self, claim: _Claim) -> str:
        """Return why a claim is not unprepared yet; empty if it is."""
        request = dra.NodeUnprepareResourcesRequest(claims=[claim.message])
        try:
            async with self._channel(claim.driver) as channel:
                stub = dra_grpc.DRAPluginStub(channel)
                answer = await stub.NodeUnprepareResources(request, timeout=DEADLINE_S)
        except (grpc.aio.AioRpcError, LookupError) as error:
            return _text(error)
        return answer.claims[claim.uid].error

    def _channel(self, driver: str) -> grpc.aio.Channel:
        """Return a channel to the driver of that name which registered last."""
        for _, name, endpoint in reversed(self._drivers.values()):
            if name == driver:
                return grpc.aio.insecure_channel(f"unix://{endpoint}", options=CHANNEL_OPTIONS)
        raise LookupError(f"DRA driver {driver} is not registered")

    async def _register(self, socket: Path, made: Made) -> None:
        try:
            async with grpc.aio.insecure_channel(
                f"unix://{socket}", options=CHANNEL_OPTIONS
            ) as channel:
                stub = reg_grpc.RegistrationStub(channel)
                info = await stub.GetInfo(reg.InfoRequest(), timeout=1.0)
                status = reg.RegistrationStatus(plugin_registered=True)
                await stub.NotifyRegistrationStatus(status, timeout=1.0)
                self._drivers.pop(socket, None)
                self._drivers[socket] = (made, info.name, info.endpoint)
        except grpc.aio.AioRpcError as error:
            log.info("%s is not registered yet: %s", socket.name, error.details())

    def _sockets(self) -> Iterator[tuple[Path, Made]]:
        """Yield each driver's socket, and what tells it from one made again in its place."""
        for path in self._registry.glob("*.sock"):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                yield path, (found.st_ino, found.st_ctime_ns)

    def _write(self) -> None:
        entries = [asdict(claim) for claim in self._claims.values()]
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps({"entries": entries}))
        os.replace(new, self._record)


def _driver_of(status: Object) -> str:
    """Return the driver of a claim's devices; empty if it has none. Ours never shares a claim."""
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    return next((str(each["driver"]) for each in results), "")


def _text(error: Exception) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
