"""Who may read metrics: accounts that the API server lets `get` the path `/metrics`.

A scraper shows a token, which a TokenReview resolves to a user; a SubjectAccessReview checks that
a role grants that user the path. Kubelets ask the same of theirs.

Answers are kept for a while, and only so many: a scrape every few seconds costs the API server
nothing, and no flood of forged tokens costs it, or us, more than a few requests at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vgpu_api.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError

PATH = "/metrics"
ALLOWED_S = 60.0
REFUSED_S = 10.0
KEPT = 1_000
AT_ONCE = 4
WAITING = 32
_REVIEW_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a scraper: an HTTP status, 200 for those who may, and why."""

    status: int
    text: str = ""


_ALLOWED = Answer(200)


class Scrapers:
    """Reviews scrapers.

    Args:
        api: Ours; its account may create TokenReviews and SubjectAccessReviews.
        clock: Monotonic seconds.
    """

    def __init__(self, api: Api, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, Answer]] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Answer]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def review(self, authorization: str) -> Answer:
        """What to answer a request with this `Authorization` header."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return Answer(401, "show a token: Authorization: Bearer TOKEN")
        key = hashlib.sha256(token.strip().encode()).digest()  # no token is kept
        until, answer = self._kept.get(key, (0.0, _ALLOWED))
        if self._clock() < until:
            return answer
        if key not in self._under_way:
            if len(self._under_way) >= WAITING:
                return Answer(503, "too many scrapers are being reviewed; try again")
            task = asyncio.create_task(self._asked(token.strip()))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(self._under_way[key])

    def _keep(self, key: bytes, done: asyncio.Task[Answer]) -> None:
        del self._under_way[key]
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        if answer.status == 503:
            return  # the API server was away: that proves nothing about the scraper
        seconds = ALLOWED_S if answer.status == 200 else REFUSED_S
        self._kept[key] = self._clock() + seconds, answer
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    async def _asked(self, token: str) -> Answer:
        try:
            async with self._turns:
                user = await self._user(token)
                if user is None:
                    return Answer(401, "the API server does not know this token")
                if await self._may_scrape(user):
                    return _ALLOWED
                name = user.get("username", "")
                return Answer(403, f'user "{name}" cannot get path "{PATH}"')
        except ClientError as error:
            return Answer(503, f"the scraper cannot be reviewed now: {error}")

    async def _user(self, token: str) -> Mapping[str, Any] | None:
        review = {"metadata": {}, "spec": {"token": token}}
        answer = await self._api.create(TOKEN_REVIEWS, _document(TOKEN_REVIEWS, review),
                                        timeout_s=_REVIEW_S)  # fmt: skip
        status = answer.get("status") or {}
        user: Mapping[str, Any] = status.get("user") or {}
        return user if status.get("authenticated") else None

    async def _may_scrape(self, user: Mapping[str, Any]) -> bool:
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
        }
        review = _document(SUBJECT_ACCESS_REVIEWS, {"metadata": {}, "spec": spec})
        answer = await self._api.create(SUBJECT_ACCESS_REVIEWS, review, timeout_s=_REVIEW_S)
        return bool((answer.get("status") or {}).get("allowed"))


def _document(resource: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
