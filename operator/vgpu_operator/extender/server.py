"""The extender's HTTP(S) server: `/filter`, `/bind`, `/preempt`, `/readyz`, and `/volcano/…`.

Only the leader answers; other replicas return 503, which kube-scheduler takes for a failed attempt
and retries. A request that cannot be read is answered in the protocol's own `Error` field.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from vgpu_api.errors import BadInput
from vgpu_client.listen import listen
from vgpu_operator.config import Address
from vgpu_operator.engine.engine import Engine
from vgpu_operator.errors import NotLeading
from vgpu_operator.extender import volcano
from vgpu_operator.extender.binding import Binder
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.preempting import preempt
from vgpu_operator.extender.wire import BindRequest, FilterRequest, PreemptRequest
from vgpu_operator.metrics import EXTENDER_DURATION, EXTENDER_ERRORS

logger = logging.getLogger(__name__)

# A pod and 5,000 full nodes take about 40 MB. Names alone take a few hundred kB.
_LARGEST_REQUEST = 128 << 20


class ExtenderServer:
    """Serves the extender's verbs; `async with` starts and stops it.

    Args:
        engine: Decides Filter calls.
        binder: Carries out Bind calls.
        leads: Returns True if this replica decides; otherwise no call is answered.
        address: The address to listen on.
        tls: Our certificate and the CA of permitted clients; None: plain HTTP.
    """

    def __init__(
        self,
        engine: Engine,
        binder: Binder,
        leads: Callable[[], bool],
        address: Address,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._engine = engine
        self._binder = binder
        self._leads = leads
        self._address = address
        self._tls = tls
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        app.router.add_post("/filter", self._timed("filter", self._filter))
        app.router.add_post("/bind", self._timed("bind", self._bind))
        app.router.add_post("/preempt", self._timed("preempt", self._preempt))
        for verb, answer in volcano.VERBS.items():
            path, handler = f"/volcano/{verb}", partial(self._volcano, answer)
            app.router.add_post(path, self._timed(f"volcano-{verb}", handler))
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> ExtenderServer:
        await self._runner.setup()
        socket = listen(self._address.host, self._address.port)
        await web.SockSite(self._runner, socket, ssl_context=self._tls).start()
        logger.info("the extender listens on %s", socket.getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def _timed(
        self, verb: str, handler: Callable[[Any], Awaitable[dict[str, Any]]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            with EXTENDER_DURATION.labels(verb=verb).time():
                try:
                    answer = await handler(orjson.loads(await request.read()))
                except orjson.JSONDecodeError as error:
                    EXTENDER_ERRORS.labels(verb=verb, reason="BadRequest").inc()
                    answer = {"Error": f"the request is not JSON: {error}"}
                except BadInput as error:
                    EXTENDER_ERRORS.labels(verb=verb, reason="BadRequest").inc()
                    answer = {"Error": str(error)}
                except NotLeading as error:
                    EXTENDER_ERRORS.labels(verb=verb, reason="NotLeading").inc()
                    return _hung_up(web.Response(status=503, text=str(error)))
            return web.Response(body=orjson.dumps(answer), content_type="application/json")

        return handle

    async def _filter(self, body: Any) -> dict[str, Any]:
        return filter_nodes(self._engine, FilterRequest.read(body)).to_wire()

    async def _bind(self, body: Any) -> dict[str, Any]:
        return {"Error": await self._binder.bind(BindRequest.read(body))}

    async def _preempt(self, body: Any) -> dict[str, Any]:
        return (await preempt(self._engine, PreemptRequest.read(body))).to_wire()

    async def _volcano(
        self, answer: Callable[[Engine, Any], dict[str, Any]], body: Any
    ) -> dict[str, Any]:
        return answer(self._engine, body)

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._leads()
        return web.Response(status=200 if ready else 503, text="ok" if ready else "not leading")


def _hung_up(answer: web.Response) -> web.Response:
    """Return the response with a header that closes its connection.

    A kept connection leads to this replica as long as both ends live, even if the Service's
    EndpointSlice has changed since: kube-scheduler would keep calling a standby.
    """
    answer.force_close()
    return answer
