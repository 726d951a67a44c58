"""What our programs run on: Kubernetes, be it the stand-in or a real control plane.

A cluster puts kubelets, operator and agents on top of either and does not ask which it is.
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
    """How a scheduler reaches the operator.

    Attributes:
        place: where the operator's Service listens.
        trust: PEM file of the authority that signed its certificate.
        certificate: what the scheduler shows of itself, PEM file.
        key: of that certificate.
        settings: the cluster's configuration: which resources are the operator's business.
    """

    place: Front
    trust: Path
    certificate: Path
    key: Path
    settings: ClusterConfig

    def tls(self) -> ssl.SSLContext:
        """A client's context that trusts the operator and shows the certificate."""
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
        """Break the streams now open; returns how many there were."""

    def restart(self, *, down_for: float = 0.0) -> None:
        """Cut all connections, be away for some seconds, and serve again at the same URL."""

    def subscribe(self, listener: Callable[[WriteEvent], None]) -> None:
        """Call `listener` after each write, in a thread of its own: be quick."""

    def history(self) -> list[WriteEvent]:
        """The writes since the start, in order: all of them unless it keeps fewer."""

    def objects(self, resource: str, namespace: str | None = None) -> list[Object]:
        """The present objects of a kind, named as kubectl does: `vgpuclaims.vgpu.dev`."""


class Foundation(Protocol):
    """An API server and a scheduler."""

    @property
    def server(self) -> Server:
        """The API server as our programs meet it, faults included."""

    def start(self, folder: Path) -> Path:
        """Start the API server; returns an administrator's kubeconfig."""

    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig that one of our programs is given; faults may befall it alone."""

    def connected(self, api: Api, loop: BackgroundLoop) -> None:
        """A client is there, and the loop it belongs to; both are until `unschedule`."""

    def furnished(self) -> None:
        """Our kinds are served."""

    def schedule(self, extender: ExtenderAccess) -> None:
        """Start the scheduler."""

    def unschedule(self) -> None:
        """End the scheduler."""

    def check(self) -> None:
        """Raise what ended a part of it."""

    def stop(self) -> None:
        """End all that was started; harmless when repeated."""


class StandIn:
    """The stand-in API server and scheduler, in threads of this process.

    Args:
        server: the API server, not started.
        scheduler_names: the `schedulerName`s that the scheduler answers to.
        backoff: the scheduler's.

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
        """The stand-in itself."""
        return self._server

    def start(self, folder: Path) -> Path:
        """Serve."""
        self.server.start()
        self._folder = folder
        return self.server.kubeconfig(folder / "kubeconfig")

    def kubeconfig_of(self, user: str) -> Path:
        """One of its own for each."""
        return self.server.kubeconfig(self._folder / f"{user}.kubeconfig", user=user)

    def connected(self, api: Api, loop: BackgroundLoop) -> None:
        """What the scheduler will use."""
        self._api, self._loop = api, loop

    def furnished(self) -> None:
        """It remembers every write anyhow."""

    def schedule(self, extender: ExtenderAccess) -> None:
        """Start the scheduler on the cluster's loop; in mode Gate one that asks no extender."""
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
        """Raise what ended the scheduler."""
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
