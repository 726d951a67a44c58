"""The HTTPS server of the admission webhooks, under kopf's handlers and beside them.

Kopf's own server ends with kopf's tasks at SIGTERM, runs no handler (and admits) for an
unregistered path, and reads reviews of 1 MiB at most, while an update carries two objects of up to
1.5 MiB. This one drains, knows its paths and has room for both objects. A certificate that changes
is taken into the same TLS context (`certificates.identity`), so nothing listens anew.
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

# Two objects of 1.5 MiB, the largest that etcd takes, as JSON that may be escaped.
LARGEST_REVIEW = 8 << 20
_TOO_LARGE = 413

_POD = 256 << 10
LARGEST_REVIEWS: Mapping[str, int] = {
    "mutate-pods": _POD,
    "validate-pods": _POD,
    "warn-pods": _POD,
    "mutate-ephemeral-containers": 3 * _POD,  # the pod before and after, each with its status
    "check-volcano-jobs": 1 << 20,
}
"""Bytes of a review, by path; `LARGEST_REVIEW` for the others, whose rules measure what they read.

Real pods have some kilobytes; those of Argo Workflows, which carry their template in a variable,
reach 128 KiB. A pod of 2.6 MiB cost 2.5 s of CPU to mutate, and `kubectl create --dry-run=server`
stores nothing, so one tenant could keep every GPU pod from being admitted. CEL cannot measure
bytes, so no match condition can refuse such a pod.
"""
ADMITTED_UNREAD = frozenset({"warn-pods", "check-volcano-jobs"})
"""Paths that admit what is too large for them: they warn, and a Job's pods are reviewed too."""
_UID = re.compile(rb'"request"\s*:\s*{\s*"uid"\s*:\s*"([^"\\]{1,64})"')
_UID_WITHIN = 1024
"""The API server writes the review's UID first."""

Answer = Callable[[Any], Awaitable[Any]]
"""Makes the answer to a review."""


class Webhooks:
    """Serves reviews and `/readyz`, from when there is a certificate to serve with.

    The state of `/readyz` is that of the pod in its Service: 200 while reviews are welcome, 503
    from SIGTERM on. Reviews are answered for `drain_s` more, each answer with the end of its
    connection, because the API server keeps connections for as long as the server does.

    Args:
        address: Where to listen.
        identity: The certificate; it may change at any time.
        paths: The ids of kopf's handlers.
        answers: What answers the reviews at other paths without kopf; a path in neither is
            answered 404.
        drain_s: How long reviews are answered after the end was asked for.
        sleep: Waits for the end of that time.
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
        """Serve reviews with `fn`; kopf's protocol of webhook servers. Cancelled, it drains."""
        await self._identity.ready.wait()
        app = web.Application(client_max_size=LARGEST_REVIEW)
        app.router.add_get("/readyz", self._readyz)
        by_kopf = {path: partial(fn, webhook=path) for path in self._paths}
        for path, answer in (by_kopf | dict(self._answers)).items():
            app.router.add_post(f"/{path}", self._reviewed(path, answer))
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        try:
            socket = listen(self._address.host, self._address.port)
            await web.SockSite(runner, socket, ssl_context=self._identity.context).start()
            logger.info("the webhooks listen on %s", socket.getsockname())
            # Only kopf's manager of configurations reads it, and it manages none of ours.
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
    """Answer a review without parsing it; the API server needs its UID back."""
    text = f"object: Too long: a review of {len(sent)} bytes, may not be more than {largest} bytes"
    uid = _UID.search(sent, 0, _UID_WITHIN)
    if uid is None:
        return web.Response(status=_TOO_LARGE, text=text)
    response: dict[str, Any] = {"uid": uid[1].decode(), "allowed": path in ADMITTED_UNREAD}
    if response["allowed"]:
        response["warnings"] = [f"{text}: vgpu has not looked for words without effect"]
    else:
        response["status"] = {"message": text, "code": _TOO_LARGE}
    WEBHOOK_REQUESTS.labels(code=200 if response["allowed"] else _TOO_LARGE).inc()
    logger.info("%s: %s", path, text)
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return web.Response(body=orjson.dumps(review), content_type="application/json")


def _last(answer: web.Response) -> web.Response:
    """The answer, and the end of its connection."""
    answer.force_close()
    return answer


def _reduced(review: Any) -> Any:
    """The review without what no rule reads of its objects: their UIDs and managed fields.

    Kopf keeps a memo for the UID of every updated object, for as long as the process runs; no
    handler uses one, and a process that watches nothing never forgets them. Without UIDs all share
    one memo. Managed fields are half of an object's keys, and kopf copies an object three times and
    compares it to answer a review: a quarter of its CPU (docs/design/loop-and-cost.md).

    Raises:
        ValueError: It does not have the shape of a review.
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
