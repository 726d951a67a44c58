"""The HTTPS server of the admission webhooks. It serves Kopf's handlers and our own.

Kopf's server stops at SIGTERM without draining, admits reviews at unknown paths because no handler
runs, and reads at most 1 MiB, although an update carries two objects of up to 1.5 MiB. This server
drains, rejects unknown paths, and accepts both objects. A renewed certificate is loaded into the
same TLS context (`certificates.identity`), so the server keeps listening.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import kopf
import orjson
from aiohttp import web

from vgpu_client.listen import listen
from vgpu_operator.certificates.identity import Identity
from vgpu_operator.config import Address
from vgpu_operator.metrics import WEBHOOK_DURATION, WEBHOOK_REQUESTS

logger = logging.getLogger(__name__)

# Two objects of up to 1.5 MiB (etcd's limit), with JSON escapes.
LARGEST_REVIEW = 8 << 20
_TOO_LARGE = 413

_POD = 256 << 10
LARGEST_REVIEWS: Mapping[str, int] = {
    "mutate-pods": _POD,
    "warn-pods": _POD,
    "mutate-ephemeral-containers": 3 * _POD,  # the pod before and after, each with its status
    "check-volcano-jobs": 1 << 20,
}
"""The largest review in bytes, by path; `LARGEST_REVIEW` for all other paths.

Rules at those other paths check the size of objects themselves. Real pods have some kilobytes;
those of Argo Workflows, which carry their template in a variable, reach 128 KiB. Mutating a pod of
2.6 MiB took 2.5 s of CPU, and `kubectl create --dry-run=server` stores nothing, so without a limit
a single tenant could block the admission of all GPU pods. A match condition cannot refuse such a
pod, because CEL cannot measure bytes.
"""
ADMITTED_UNREAD = frozenset({"warn-pods", "check-volcano-jobs"})
"""Paths that admit objects beyond the limit: they only warn, or the Job's pods are reviewed anyway.
"""
_UID = re.compile(rb'"request"\s*:\s*{\s*"uid"\s*:\s*"([^"\\]{1,64})"')
_UID_WITHIN = 1024
"""The API server writes the UID first, so it is within this many bytes."""

Answer = Callable[[Any], Awaitable[Any]]
"""Answers a review."""


class Webhooks:
    """Serves reviews and `/readyz` once there is a certificate.

    `/readyz` is the readiness probe: 200 normally, 503 after SIGTERM. Reviews are still served for
    `drain_s` seconds after SIGTERM. Each of these responses closes its connection, because the API
    server would otherwise reuse it until the server exits.

    Args:
        address: Where to listen.
        identity: The certificate; it may change at any time.
        paths: The ids of the Kopf handlers, which are also their paths.
        answers: The functions that serve reviews at other paths. Unknown paths get a 404.
        drain_s: How long to keep serving reviews after SIGTERM, in seconds.
        sleep: Used to wait for `drain_s`.
    """

    def __init__(
        self,
        address: Address,
        identity: Identity,
        *,
        paths: Collection[str],
        answers: Mapping[str, Answer],
        drain_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._address = address
        self._identity = identity
        self._paths = paths
        self._answers = answers
        self._drain_s = drain_s
        self._sleep = sleep
        self._draining = False

    async def __call__(self, fn: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """Serve reviews with `fn`, in Kopf's protocol for webhook servers. Drain when cancelled."""
        await self._identity.ready.wait()
        app = web.Application(client_max_size=LARGEST_REVIEW)
        app.router.add_get("/readyz", self._readyz)
        by_kopf = {path: partial(fn, webhook=path) for path in self._paths}
        for path, answer in (by_kopf | dict(self._answers)).items():
            app.router.add_post(f"/{path}", self._reviewed(path, answer))
        # Kopf handles signals: it cancels this server, which then drains.
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        try:
            socket = listen(self._address.host, self._address.port)
            await web.SockSite(runner, socket, ssl_context=self._identity.context).start()
            logger.info("listening on %s", socket.getsockname())
            # Only Kopf's manager of webhook configurations reads this, and we do not use it.
            yield {"url": f"https://{self._address.url_host}:{self._address.port}"}
            await asyncio.Event().wait()
        finally:
            self._draining = True
            await self._sleep(self._drain_s)
            await runner.cleanup()

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._draining:
            return _last(web.Response(status=503, text="ending"))
        return web.Response(text="ok")

    def _reviewed(
        self, path: str, answer: Answer
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        duration = WEBHOOK_DURATION.labels(webhook=path)
        largest = LARGEST_REVIEWS.get(path, LARGEST_REVIEW)

        async def serve(request: web.Request) -> web.Response:
            with duration.time():
                sent = await request.read()
                if len(sent) > largest:
                    return _too_large(path, sent, largest)
                try:
                    review = _reduced(orjson.loads(sent))
                except ValueError as error:
                    return web.Response(status=400, text=f"not a review: {error}")
                body = orjson.dumps(await answer(review))
                response = web.Response(body=body, content_type="application/json")
            return _last(response) if self._draining else response

        return serve


def _too_large(path: str, sent: bytes, largest: int) -> web.Response:
    """Answer a review without parsing it; only its UID is extracted, for the response."""
    text = f"object: Too long: a review of {len(sent)} bytes, may not be more than {largest} bytes"
    uid = _UID.search(sent, 0, _UID_WITHIN)
    if uid is None:
        return web.Response(status=_TOO_LARGE, text=text)
    response: dict[str, Any] = {"uid": uid[1].decode(), "allowed": path in ADMITTED_UNREAD}
    if response["allowed"]:
        response["warnings"] = [f"{text}: vgpu did not check for settings without effect"]
    else:
        response["status"] = {"message": text, "code": _TOO_LARGE}
    WEBHOOK_REQUESTS.labels(code=200 if response["allowed"] else _TOO_LARGE).inc()
    logger.info("%s: %s", path, text)
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return web.Response(body=orjson.dumps(review), content_type="application/json")


def _last(answer: web.Response) -> web.Response:
    """Return the response, and close the connection afterwards."""
    answer.force_close()
    return answer


def _reduced(review: Any) -> Any:
    """Return the review without UIDs and managed fields of objects, which no rule reads.

    Kopf keeps a memo per UID of an updated object, and forgets it only through a watch, which this
    process does not have. Without UIDs all objects share one memo. Managed fields make up half of
    an object's keys; Kopf copies each object three times and compares it, which took a quarter of
    the CPU of a review (docs/design/loop-and-cost.md).

    Raises:
        ValueError: The document is not a review.
    """
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict):
        raise ValueError("request: Required value: an object")
    for key in ("object", "oldObject"):
        reviewed = request.get(key)
        if isinstance(reviewed, dict) and isinstance(reviewed.get("metadata"), dict):
            for unread in ("uid", "managedFields"):
                reviewed["metadata"].pop(unread, None)
    return review
