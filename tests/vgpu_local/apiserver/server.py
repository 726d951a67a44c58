"""The API server as tests start it: a thread with an event loop of its own, on loopback.

It has its own loop because Kopf, when it stops, cancels every task of the loop in which it ran.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import web

from vgpu_local.apiserver.cluster import Cluster
from vgpu_local.apiserver.faults import Faults
from vgpu_local.apiserver.kinds import Obj
from vgpu_local.apiserver.routes import Routes
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.apiserver.watches import Break
from vgpu_local.background import BackgroundLoop
from vgpu_local.listener import listen
from vgpu_local.pki import Authority
from vgpu_local.started import Started

T = TypeVar("T")


class ApiServer(Started):
    """A stand-in Kubernetes API server; usable as a context manager.

    Args:
        port: The port; 0 for a free one.
        tls: False for plain HTTP.
        authority: The authority that signs the server's certificate; None for a new one.
        services: The URLs behind webhooks' service references, by `NAMESPACE/NAME`.
        seed: Decides which of the matching requests a fault with a `share` below 1 affects.
        clock: Returns the seconds since the epoch, for timestamps and ages.
        remembered: How many changes per kind are kept for watches; starting before them gets a 410.
        history_kept: How many of the latest writes `history` keeps; None for all.
        event_ttl_s: How long an event is kept after its last write, as with `--event-ttl`.
        bookmark_every: The seconds between bookmarks.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        tls: bool = True,
        authority: Authority | None = None,
        services: Mapping[str, str] | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
        remembered: int = 10_000,
        history_kept: int | None = None,
        event_ttl_s: float = 3600.0,
        bookmark_every: float = 10.0,
    ) -> None:
        self.faults = Faults(seed=seed)
        self.services: dict[str, str] = dict(services or {})
        self.authority = (authority or Authority()) if tls else None
        self._port = port
        self._clock = clock
        self._remembered = remembered
        self._history_kept = history_kept
        self._event_ttl_s = event_ttl_s
        self._bookmark_every = bookmark_every
        self._context = self.authority.leaf().server_context() if self.authority else None
        self._cluster = self._new_cluster()
        self._loop: BackgroundLoop | None = None
        self._runner: web.ServerRunner | None = None
        self._tidying: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """Return the URL for clients; known once started, and kept over restarts."""
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self._port}"

    @property
    def ca_certificate(self) -> bytes | None:
        """Return the PEM that clients must trust; None with plain HTTP."""
        return self.authority.certificate if self.authority else None

    def kubeconfig(self, path: Path, *, user: str = "kubernetes-admin") -> Path:
        """Write a kubeconfig that leads here; `user` is the bearer's name."""
        cluster: Obj = {"server": self.url}
        if self.ca_certificate is not None:
            encoded = base64.b64encode(self.ca_certificate).decode()
            cluster["certificate-authority-data"] = encoded
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stand-in",
            "clusters": [{"name": "stand-in", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [
                {
                    "name": "stand-in",
                    "context": {"cluster": "stand-in", "user": user, "namespace": "default"},
                }
            ],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def start(self) -> None:
        """Start to serve, and return when connections are accepted.

        Raises:
            OSError: the port is taken.
        """
        self._loop = BackgroundLoop("apiserver")
        try:
            self._do(self._open)
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Close every connection and end the thread; a stopped server cannot be started again."""
        if self._loop is not None:
            self._do(self._close)
            self._do(self._cluster.admission.close)
            self._end_loop()

    def restart(self, *, keep_data: bool = True, down_for: float = 0.0) -> None:
        """Cut all connections, stay away for some seconds, and serve again at the same URL.

        With its data, the server forgets the changes that watches could start from, as a real one
        does; without its data, it begins as a new cluster, with resourceVersions from the start and
        no CRDs.
        """
        self._do(self._close)
        if keep_data:
            self._cluster.store.forget_changes()
        else:
            self._do(self._cluster.admission.close)
            subscribers = self._cluster.store.subscribers
            self._cluster = self._new_cluster()
            self._cluster.store.subscribers = subscribers
        if down_for:
            time.sleep(down_for)
        self._do(self._open)

    def history(self) -> list[WriteEvent]:
        """Return the writes since the last restart without data, in order."""
        return list(self._cluster.store.history)

    def subscribe(self, listener: Callable[[WriteEvent], None]) -> None:
        """Call `listener` after each write, in order, in the server's thread: be quick."""
        self._cluster.store.subscribers.append(listener)

    def objects(self, resource: str, namespace: str | None = None) -> list[Obj]:
        """Return the present objects of `pods`, `vgpuclaims.vgpu.dev` …; copies.

        Raises:
            KeyError: the resource is not served.
        """

        async def read() -> list[Obj]:
            table = self._cluster.store.table(self._cluster.registry.get(resource))
            return [
                WriteEvent("", resource, stored.revision, stored.raw).object
                for stored in table.listed(namespace)
            ]

        return self._do(read)

    def break_watches(self, resource: str = "*", how: Break = "drop") -> int:
        """Break the open streams: cut (`drop`), silence (`freeze`) or expire (`gone`) them.

        Return the number of streams.
        """

        async def broken() -> int:
            return self._cluster.watches.break_open(resource, how)

        return self._do(broken)

    def watch_count(self, resource: str = "*") -> int:
        """Return the number of open watch streams."""

        async def count() -> int:
            return self._cluster.watches.count(resource)

        return self._do(count)

    def _new_cluster(self) -> Cluster:
        return Cluster(
            services=self.services,
            clock=self._clock,
            remembered=self._remembered,
            history_kept=self._history_kept,
            event_ttl_s=self._event_ttl_s,
            bookmark_every=self._bookmark_every,
        )

    def _do(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a function in the server's loop and wait for it."""
        assert self._loop is not None, "the server is not started"
        return self._loop.run(action())

    def _end_loop(self) -> None:
        assert self._loop is not None
        self._loop.stop()
        self._loop = None

    async def _open(self) -> None:
        routes = Routes(self._cluster, self.faults)
        self._runner, self._port = await listen(routes.handle, port=self._port, tls=self._context)
        if not self._cluster.store.revision:
            await self._cluster.begin()
        self._tidying = [
            asyncio.create_task(work)
            for work in (self._cluster.collector.run(), self._cluster.expiry.run())
        ]

    async def _close(self) -> None:
        for task in self._tidying:
            task.cancel()
        for task in self._tidying:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._cluster.watches.break_open("*", "drop")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
