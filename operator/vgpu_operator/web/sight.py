"""Visitors: their tokens and permissions, reviewed by the API server.

The process can read the whole cluster, but a visitor sees only objects that they could read
themselves. Each permission takes one SubjectAccessReview, whose answer is cached for some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from typing import TypeAlias

from vgpu_api.errors import VgpuError
from vgpu_api.resources import (
    GPU_DEVICES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError
from vgpu_client.reviews import Answers, Busy, Limits, User, bearer, fingerprint, may, user_of
from vgpu_operator.engine.informers import priority_classes
from vgpu_operator.insight.priorities import Priorities

KNOWN_S = 15.0
"""Seconds for which an accepted token or permission is cached."""
REFUSED_S = 30.0
"""Seconds for which refusals are cached; a tenant may read few namespaces, so most answers are."""
_AT_ONCE = 8
_TOKENS = Limits(kept=1_000, of_owner=16, at_once=4, waiting=32)
_PERMISSIONS = Limits(kept=100_000, of_owner=10_000, at_once=_AT_ONCE, waiting=1_000)

_Right: TypeAlias = tuple[User, str, str]
"""The user, the resource to list, and the namespace; empty: all namespaces."""


class VisitorRefused(VgpuError):
    """A visitor's request was refused.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Sight:
    """The objects that a visitor may see.

    Attributes:
        user: The name of the user.
        devices: True if devices and their allocated amounts may be seen.
        nodes: True if the conditions of nodes may be seen.
        everywhere: True if the claims of all namespaces may be seen.
        namespaces: Otherwise, the namespaces whose claims may be seen.
        volumes: The namespaces in a question whose PersistentVolumeClaims may be seen.
    """

    user: str
    devices: bool = False
    nodes: bool = False
    everywhere: bool = False
    namespaces: frozenset[str] = field(default_factory=frozenset)
    volumes: frozenset[str] = field(default_factory=frozenset)

    def reads(self, namespace: str) -> bool:
        """Return True if the claims of a namespace may be shown by name."""
        return self.everywhere or namespace in self.namespaces


class Visitors:
    """Reviews the tokens and permissions of visitors.

    Args:
        api: A client that may create TokenReviews and SubjectAccessReviews.
        clock: Returns the current time.
    """

    def __init__(self, api: Api, *, clock: Clock | None = None) -> None:
        self._api = api
        self._users: Answers[bytes, User | None] = Answers(
            lambda user: REFUSED_S if user is None else KNOWN_S,
            owner=lambda _, user: None if user is None else user.name,
            limits=_TOKENS,
            clock=clock,
        )
        self._permissions: Answers[_Right, bool] = Answers(
            lambda allowed: KNOWN_S if allowed else REFUSED_S,
            owner=lambda right, _: right[0].name,
            limits=_PERMISSIONS,
            clock=clock,
        )

    async def user(self, authorization: str) -> User:
        """Return the user of an `Authorization` header.

        Raises:
            VisitorRefused: 401: the API server rejects the token. 503: the token cannot be reviewed
                now.
        """
        token = bearer(authorization)
        if not token:
            raise VisitorRefused(401, "a token is required: Authorization: Bearer TOKEN")
        try:
            user = await self._users.get(fingerprint(token), lambda: user_of(self._api, token))
        except (Busy, ClientError) as error:
            raise VisitorRefused(503, f"the token cannot be reviewed now: {error}") from error
        if user is None:
            raise VisitorRefused(401, "the API server does not know this token")
        return user

    async def sight(self, user: User, namespaces: Collection[str]) -> Sight:
        """Return the objects that a user may see.

        Args:
            user: The user.
            namespaces: The namespaces that have claims, and those that the request names.

        Raises:
            VisitorRefused: 503: permissions cannot be reviewed now.
        """
        devices, nodes, everywhere = await asyncio.gather(
            *(self.lists(user, resource) for resource in (GPU_DEVICES, NODES, VGPU_CLAIMS))
        )
        readable = await self._listed_in(() if everywhere else namespaces, user, VGPU_CLAIMS)
        return Sight(user.name, devices, nodes, everywhere, readable)

    async def sight_of_volumes(
        self, user: User, sight: Sight, namespaces: Collection[str]
    ) -> Sight:
        """Return the sight with the namespaces whose volumes the user may see.

        Raises:
            VisitorRefused: 503: permissions cannot be reviewed now.
        """
        listed = await self._listed_in(namespaces, user, PERSISTENT_VOLUME_CLAIMS)
        return replace(sight, volumes=listed)

    async def priorities(self) -> Priorities:
        """Return the cluster's PriorityClasses, which are shown to every visitor.

        They are read for each question, because few questions need them.
        """
        try:
            return Priorities(await priority_classes(self._api))
        except ClientError as error:
            return Priorities(unread=str(error))

    async def _listed_in(
        self, namespaces: Collection[str], user: User, resource: Resource
    ) -> frozenset[str]:
        listed: list[str] = []
        # Review in batches: there may be thousands, and reviews beyond the queue's limit are
        # refused.
        for some in _in_batches(namespaces):
            allowed = await asyncio.gather(*(self.lists(user, resource, name) for name in some))
            listed += compress(some, allowed)
        return frozenset(listed)

    async def lists(self, user: User, resource: Resource, namespace: str = "") -> bool:
        """Return True if the user may list a kind in a namespace, or in all if it is empty.

        Raises:
            VisitorRefused: 503: the permission cannot be reviewed now.
        """
        attributes: Mapping[str, object] = {
            "resourceAttributes": {
                "verb": "list",
                "group": resource.group,
                "version": resource.version,
                "resource": resource.plural,
                "namespace": namespace,
            }
        }
        key = user, resource.plural, namespace
        try:
            return await self._permissions.get(key, lambda: may(self._api, user, attributes))
        except (Busy, ClientError) as error:
            raise VisitorRefused(503, f"rights cannot be reviewed now: {error}") from error


def _in_batches(namespaces: Collection[str]) -> Iterator[tuple[str, ...]]:
    left = iter(namespaces)
    while some := tuple(islice(left, _AT_ONCE)):
        yield some
