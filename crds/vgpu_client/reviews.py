"""Whose a token is and what its user may do, by the API server: TokenReview, SubjectAccessReview.

Answers are kept for a while, and only so many. A page that refreshes, or a scrape every few
seconds, costs the API server nothing; no flood of forged tokens costs it, or us, more than a few
requests at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from vgpu_api.errors import VgpuError
from vgpu_api.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from vgpu_client.api import Api

KEPT = 1_000
AT_ONCE = 4
WAITING = 32
_REVIEW_S = 5.0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Busy(VgpuError):
    """Too many questions wait already; the next try may find a place."""


@dataclass(frozen=True, slots=True)
class User:
    """Who shows a token, as a TokenReview names him.

    Attributes:
        groups: In the server's order.
        extra: More that authorizers may read; no part of a user's hash.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, list[str]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a cache of answers: how many are kept, asked at once, and wait to be asked."""

    kept: int = KEPT
    at_once: int = AT_ONCE
    waiting: int = WAITING


class Answers(Generic[K, V]):
    """Answers by question, each kept for a while; those who ask the same wait for one answer.

    Args:
        keep_s: For how many seconds an answer is good; 0: it is not kept.
        limits: Of its size.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        keep_s: Callable[[V], float],
        *,
        limits: Limits = Limits(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep_s = keep_s
        self._limits = limits
        self._clock = clock
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._under_way: dict[K, asyncio.Task[V]] = {}
        self._turns = asyncio.Semaphore(limits.at_once)

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: K, query: Callable[[], Awaitable[V]]) -> V:
        """The answer to `key`: a kept one, or what `query` returns.

        Raises:
            Busy: Too many wait.
            Exception: What `query` raises; that is not kept.
        """
        kept = self._kept.get(key)
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        task = self._under_way.get(key)
        if task is None:
            if len(self._under_way) >= self._limits.waiting:
                raise Busy("too many reviews are under way; try again")
            task = asyncio.create_task(self._answered(query))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    async def _answered(self, query: Callable[[], Awaitable[V]]) -> V:
        async with self._turns:
            return await query()

    def _keep(self, key: K, done: asyncio.Task[V]) -> None:
        del self._under_way[key]
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        seconds = self._keep_s(answer)
        if not seconds:
            return
        self._kept[key] = self._clock() + seconds, answer
        self._kept.move_to_end(key)
        while len(self._kept) > self._limits.kept:
            self._kept.popitem(last=False)


def bearer(authorization: str) -> str:
    """The token of an `Authorization` header; empty where it has none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def fingerprint(token: str) -> bytes:
    """What stands for a token in a cache: no token is kept."""
    return hashlib.sha256(token.encode()).digest()


async def user_of(api: Api, token: str) -> User | None:
    """Whose token it is; None where the API server does not accept it.

    Raises:
        ClientError: The API server is away, or refuses to review.
    """
    answer = await _review(api, TOKEN_REVIEWS, {"token": token})
    if not answer.get("authenticated"):
        return None
    user: Mapping[str, Any] = answer.get("user") or {}
    return User(
        str(user.get("username", "")),
        str(user.get("uid", "")),
        tuple(user.get("groups") or ()),
        dict(user.get("extra") or {}),
    )


async def may(api: Api, user: User, attributes: Mapping[str, Any]) -> bool:
    """Whether a user may do something.

    Args:
        api: Ours; its account may create SubjectAccessReviews.
        user: Who.
        attributes: `resourceAttributes` or `nonResourceAttributes`, with what is in them.

    Raises:
        ClientError: The API server is away, or refuses to review.
    """
    spec = {
        "user": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": dict(user.extra),
        **attributes,
    }
    return bool((await _review(api, SUBJECT_ACCESS_REVIEWS, spec)).get("allowed"))


async def _review(api: Api, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {},
        "spec": dict(spec),
    }
    answer = await api.create(resource, body, timeout_s=_REVIEW_S)
    status: Mapping[str, Any] = answer.get("status") or {}
    return status
