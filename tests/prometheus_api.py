"""A server that plays Prometheus' HTTP API, as its manual documents it.

https://prometheus.io/docs/prometheus/latest/querying/api: an instant query returns a vector of
`{"metric": {…}, "value": [TIME, "NUMBER"]}`, a range query a matrix of
`{"metric": {…}, "values": [[TIME, "NUMBER"], …]}`. Parameters come in the URL or as a form. It does
not evaluate expressions: the first known metric in an expression decides what is returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from vgpu_client.listen import listen

AT = 1435781451.781


@dataclass
class PrometheusApi:
    """The answers of the server, and what it was asked.

    Attributes:
        vectors: By metric: the labels and value of each series.
        matrices: By metric: the labels of each series, and its values by Unix time.
        error: A status and a text; every query is refused with them.
        asked: The parameters of each query, in order.
        headers: The headers of the last query.
    """

    vectors: dict[str, Sequence[tuple[Mapping[str, str], str]]] = field(default_factory=dict)
    matrices: dict[str, Sequence[tuple[Mapping[str, str], Mapping[int, str]]]] = field(
        default_factory=dict
    )
    error: tuple[int, str] | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""

    async def query(self, request: web.Request) -> web.Response:
        """Answer an instant query."""
        parameters = await self._parameters(request)
        if self.error is not None:
            return _error(*self.error)
        found = next(
            (series for name, series in self.vectors.items() if name in parameters["query"]), ()
        )
        result = [{"metric": dict(labels), "value": [AT, value]} for labels, value in found]
        return _success({"resultType": "vector", "result": result})

    async def query_range(self, request: web.Request) -> web.Response:
        """Answer a range query: the values of each step from start to end, if there are any."""
        parameters = await self._parameters(request)
        if self.error is not None:
            return _error(*self.error)
        start, end, step = (int(parameters[name]) for name in ("start", "end", "step"))
        if (end - start) / step > 11_000:
            return _error(400, "exceeded maximum resolution of 11,000 points per timeseries.")
        found = next(
            (series for name, series in self.matrices.items() if name in parameters["query"]), ()
        )
        result = [
            {
                "metric": dict(labels),
                "values": [[at, values[at]] for at in range(start, end + 1, step) if at in values],
            }
            for labels, values in found
        ]
        return _success({"resultType": "matrix", "result": result})

    async def _parameters(self, request: web.Request) -> dict[str, str]:
        parameters = {**request.query, **await request.post()}
        self.asked.append({name: str(value) for name, value in parameters.items()})
        self.headers = dict(request.headers)
        return self.asked[-1]


def _error(status: int, text: str) -> web.Response:
    document = {"status": "error", "errorType": "execution", "error": text}
    return web.json_response(document, status=status)


def _success(data: Mapping[str, Any]) -> web.Response:
    return web.json_response({"status": "success", "data": data})


@asynccontextmanager
async def serving_prometheus(api: PrometheusApi) -> AsyncIterator[PrometheusApi]:
    """Serve over HTTP on loopback; sets the URL."""
    app = web.Application()
    for method in ("GET", "POST"):
        app.router.add_route(method, "/api/v1/query", api.query)
        app.router.add_route(method, "/api/v1/query_range", api.query_range)
    runner, listening = web.AppRunner(app, access_log=None), listen("127.0.0.1", 0)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    api.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield api
    finally:
        await runner.cleanup()


def of_device(uuid: str) -> Mapping[str, str]:
    """Return the labels of a device's series, as docs/reference/metrics.md lists them."""
    return {"node": "node-0", "device_uuid": uuid, "instance": "10.0.0.1:9394"}


def of_claim(
    claim: str, *, namespace: str = "default", uuid: str = "GPU-0-0", container: str = "main"
) -> Mapping[str, str]:
    """Return the labels of a series of a claim's container."""
    return {
        "node": "node-0",
        "device_uuid": uuid,
        "namespace": namespace,
        "claim": claim,
        "pod": f"pod-of-{claim}",
        "container": container,
    }
