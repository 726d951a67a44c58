"""Asks the API server for a token's user (TokenReview) and permissions (SubjectAccessReview).

Answers are cached for a while, and only so many. A page that refreshes, or a scrape every few
seconds, costs the API server nothing. A flood of forged tokens costs the server and us no more than
a few requests at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from vgpu_api.errors import VgpuError
from vgpu_api.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from vgpu_client.api import Api
from vgpu_client.clock import Clock

KEPT = 1_000
AT_ONCE = 4
WAITING = 32
_REVIEW_S = 5.0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Busy(VgpuError):
    """Too many reviews are waiting already; a retry may succeed."""


@dataclass(frozen=True, slots=True)
class User:
    """The user that a TokenReview found for a token.

    Attributes:
        groups: In the server's order.
        extra: More attributes that authorizers may read; not part of a user's hash.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, list[str]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a cache of answers.

    Attributes:
        kept: Cached answers to accepted questions, and as many to refused ones.
        of_owner: The share of these that one owner may take.
        at_once: Questions that are asked at the same time, in each lane.
        waiting: Questions that wait or are being asked, in each lane.
    """

    kept: int = KEPT
    of_owner: int = KEPT
    at_once: int = AT_ONCE
    waiting: int = WAITING


class Answers(Generic[K, V]):
    """A cache of answers by question; callers that ask the same question share one answer.

    A question that was accepted before is repeated in a separate lane, and answers to strangers
    cannot displace it. So a flood of forged tokens neither delays nor evicts a known client.

    Args:
        keep_s: Returns the number of seconds for which an answer may be cached; 0: do not cache it.
        owner: Returns the owner of an accepted question, or None if the question was refused.
        limits: The limits of the cache's size.
        clock: The source of the time.
    """

    def __init__(
        self,
        keep_s: Callable[[V], float],
        *,
        owner: Callable[[K, V], str | None],
        limits: Limits = Limits(),
        clock: Clock | None = None,
    ) -> None:
        self._keep_s = keep_s
        self._owner = owner
        self._limits = limits
        self._clock = clock or Clock()
        self._refused: _Kept[K, V] = OrderedDict()
        self._accepted: dict[str, _Kept[K, V]] = {}
        self._owner_of: dict[K, str] = {}
        self._strangers = _Lane[K, V](limits)
        self._known = _Lane[K, V](limits)

    def __len__(self) -> int:
        return len(self._refused) + len(self._owner_of)

    async def get(self, key: K, query: Callable[[], Awaitable[V]]) -> V:
        """Return the answer to `key`: a cached one, or the result of `query`.

        Raises:
            Busy: Too many questions are waiting.
            Exception: Raised by `query`; it is not cached.
        """
        owner = self._owner_of.get(key)
        kept = (self._refused if owner is None else self._accepted[owner]).get(key)
        if kept is not None and self._clock.monotonic() < kept[0]:
            return kept[1]
        lane = self._strangers if owner is None else self._known
        task = lane.under_way.get(key)
        if task is None:
            if len(lane.under_way) >= self._limits.waiting:
                raise Busy("too many reviews are in progress; try again")
            task = asyncio.create_task(_answered(lane, query))
            lane.under_way[key] = task
            task.add_done_callback(lambda done: self._keep(key, lane, done))
        return await asyncio.shield(task)

    def _keep(self, key: K, lane: _Lane[K, V], done: asyncio.Task[V]) -> None:
        del lane.under_way[key]
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        seconds = self._keep_s(answer)
        if not seconds:
            return
        self._forget(key)
        owner, entry = self._owner(key, answer), (self._clock.monotonic() + seconds, answer)
        if owner is None:
            self._refused[key] = entry
            if len(self._refused) > self._limits.kept:
                self._refused.popitem(last=False)
            return
        self._owner_of[key] = owner
        of_owner = self._accepted.setdefault(owner, OrderedDict())
        of_owner[key] = entry
        if len(of_owner) > self._limits.of_owner:
            self._forget(next(iter(of_owner)))
        if len(self._owner_of) > self._limits.kept:  # evict from the owner with the most answers
            most = max(self._accepted, key=lambda name: len(self._accepted[name]))
            self._forget(next(iter(self._accepted[most])))

    def _forget(self, key: K) -> None:
        self._refused.pop(key, None)
        owner = self._owner_of.pop(key, None)
        if owner is not None:
            del self._accepted[owner][key]
            if not self._accepted[owner]:
                del self._accepted[owner]


_Kept: TypeAlias = "OrderedDict[K, tuple[float, V]]"


class _Lane(Generic[K, V]):
    """The reviews in flight, and a limit on how many run at once."""

    def __init__(self, limits: Limits) -> None:
        self.under_way: dict[K, asyncio.Task[V]] = {}
        self.turns = asyncio.Semaphore(limits.at_once)


async def _answered(lane: _Lane[K, V], query: Callable[[], Awaitable[V]]) -> V:
    async with lane.turns:
        return await query()


def bearer(authorization: str) -> str:
    """Return the token of an `Authorization` header; empty if it has none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def fingerprint(token: str) -> bytes:
    """Return the cache key of a token, so that no token itself is kept."""
    return hashlib.sha256(token.encode()).digest()


async def user_of(api: Api, token: str) -> User | None:
    """Return the token's user; None if the API server does not accept the token.

    Raises:
        ClientError: The API server is unreachable, or refuses the review.
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
    """Return True if the user is authorized for the given attributes.

    Args:
        api: Our client; its account must be allowed to create SubjectAccessReviews.
        user: The user.
        attributes: `resourceAttributes` or `nonResourceAttributes`, with their content.

    Raises:
        ClientError: The API server is unreachable, or refuses the review.
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
