"""The foundation of a test cluster: the stand-in for Kubernetes, or a real control plane.

A cluster runs kubelets, operators and agents on either, without knowing which it is.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vgpu_api.config import ClusterConfig
from vgpu_client.api import Api
from vgpu_client.transport import Object
from vgpu_local.apiserver import ApiServer
from vgpu_local.apiserver.faults import Faults
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.apiserver.watches import Break
from vgpu_local.assembly import extender_config
from vgpu_local.background import BackgroundLoop
from vgpu_local.programs import Front
from vgpu_local.scheduler.loop import Scheduler
from vgpu_local.scheduler.queue import Backoff

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExtenderAccess:
    """The data with which a scheduler reaches the operator.

    Attributes:
        place: The address of the operator's Service.
        trust: PEM file of the authority that signed the operator's certificate.
        certificate: PEM file of the scheduler's client certificate.
        key: PEM file of that certificate's key.
        settings: The cluster's configuration, with the resources that the operator manages.
    """

    place: Front
    trust: Path
    certificate: Path
    key: Path
    settings: ClusterConfig

    def tls(self) -> ssl.SSLContext:
        """Return a client's TLS context that trusts the operator and shows the certificate."""
        context = ssl.create_default_context(cafile=self.trust)
        context.load_cert_chain(self.certificate, self.key)
        return context


class Server(Protocol):
    """An API server that can be made to fail, and whose writes are remembered.

    Attributes:
        faults: arm faults here.
    """

    faults: Faults

    def break_watches(self, resource: str = "*", how: Break = "drop") -> int:
        """Break all open streams; return how many there were."""

    def restart(self, *, down_for: float = 0.0) -> None:
        """Cut all connections and serve again, after `down_for` seconds, at the same URL."""

    def subscribe(self, listener: Callable[[WriteEvent], None]) -> None:
        """Call `listener` after each write, in a thread of its own: be quick."""

    def history(self) -> list[WriteEvent]:
        """Return the writes since the start in order, or the last ones if it keeps fewer."""

    def objects(self, resource: str, namespace: str | None = None) -> list[Object]:
        """Return the current objects of a kind, named as in kubectl: `vgpuclaims.vgpu.dev`."""


class Foundation(Protocol):
    """An API server and a scheduler."""

    @property
    def server(self) -> Server:
        """Return the API server as our programs meet it, faults included."""

    def start(self, folder: Path) -> Path:
        """Start the API server; return an administrator's kubeconfig."""

    def kubeconfig_of(self, user: str) -> Path:
        """Return a kubeconfig for one of our programs; faults may be limited to its user."""

    def connected(self, api: Api, loop: BackgroundLoop) -> None:
        """Receive a client and its loop, which live until `unschedule`."""

    def furnished(self) -> None:
        """Called once our kinds are served."""

    def schedule(self, extender: ExtenderAccess) -> None:
        """Start the scheduler."""

    def unschedule(self) -> None:
        """End the scheduler."""

    def check(self) -> None:
        """Raise the error that ended a part of it, if any."""

    def stop(self) -> None:
        """Stop all that was started; may be called again."""


class StandIn:
    """The stand-in API server and scheduler, in threads of this process.

    Args:
        server: The API server, not started.
        scheduler_names: The `schedulerName`s that the scheduler serves.
        backoff: The scheduler's back-off.
    """

    def __init__(
        self, *, server: ApiServer, scheduler_names: frozenset[str], backoff: Backoff
    ) -> None:
        self._server = server
        self._names = scheduler_names
        self._backoff = backoff
        self._scheduling: asyncio.Task[None] | None = None

    @property
    def server(self) -> ApiServer:
        """Return the stand-in's API server."""
        return self._server

    def start(self, folder: Path) -> Path:
        """Start to serve; return an administrator's kubeconfig."""
        self.server.start()
        self._folder = folder
        return self.server.kubeconfig(folder / "kubeconfig")

    def kubeconfig_of(self, user: str) -> Path:
        """Return a kubeconfig for this user."""
        return self.server.kubeconfig(self._folder / f"{user}.kubeconfig", user=user)

    def connected(self, api: Api, loop: BackgroundLoop) -> None:
        """Keep the client and the loop for the scheduler."""
        self._api, self._loop = api, loop

    def furnished(self) -> None:
        """Do nothing: the stand-in records every write anyway."""

    def schedule(self, extender: ExtenderAccess) -> None:
        """Start the scheduler on the cluster's loop, without an extender in Gate mode."""
        if extender.settings.scheduling.mode == "Gate":
            scheduler = Scheduler(
                self._api, frozenset({"default-scheduler"}), [], backoff=self._backoff
            )
        else:
            config = extender_config(extender.place, extender.tls(), extender.settings)
            scheduler = Scheduler(self._api, self._names, [config], backoff=self._backoff)
        self._scheduling = self._loop.run(_started(scheduler.run()))

    def unschedule(self) -> None:
        """End the scheduler."""
        if self._scheduling is not None:
            self._loop.run(_cancelled(self._scheduling), limit=10)
            self._scheduling = None

    def check(self) -> None:
        """Raise the error that ended the scheduler, if any."""
        if self._scheduling is not None and self._scheduling.done():
            self._scheduling.result()

    def stop(self) -> None:
        """Stop serving."""
        self.server.stop()


async def _started(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.create_task(work)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
