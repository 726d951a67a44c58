"""What a visitor may see: his token and his rights, reviewed by the API server.

The process reads the whole cluster; a visitor is shown what he could read himself. Each right is
one SubjectAccessReview, kept for some seconds: a right that is taken away ends there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
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
from vgpu_client.errors import ClientError
from vgpu_client.reviews import Answers, Busy, Limits, User, bearer, fingerprint, may, user_of

KNOWN_S = 15.0
"""For so long a token, or a right, is good without being reviewed again."""
REFUSED_S = 30.0
"""A tenant of a cluster with a thousand namespaces is refused most of them, again and again."""
_AT_ONCE = 8
_TOKENS = Limits(kept=1_000, of_owner=16, at_once=4, waiting=32)
_PERMISSIONS = Limits(kept=100_000, of_owner=10_000, at_once=_AT_ONCE, waiting=1_000)

_Right: TypeAlias = tuple[User, str, str]
"""Who lists what, in which namespace; empty: everywhere."""


class VisitorRefused(VgpuError):
    """A request is not answered.

    Attributes:
        status: Of HTTP.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Sight:
    """What one visitor may see.

    Attributes:
        user: His name.
        devices: Whether devices, and what of them is given away.
        nodes: Whether the conditions of nodes, too.
        everywhere: Whether the claims of every namespace.
        namespaces: Else, those whose claims; of the namespaces that have claims.
        volumes: Whose PersistentVolumeClaims, of the namespaces that he asks about.
    """

    user: str
    devices: bool = False
    nodes: bool = False
    everywhere: bool = False
    namespaces: frozenset[str] = field(default_factory=frozenset)
    volumes: frozenset[str] = field(default_factory=frozenset)

    def reads(self, namespace: str) -> bool:
        """Whether claims of a namespace are shown by name."""
        return self.everywhere or namespace in self.namespaces


class Visitors:
    """Reviews who asks.

    Args:
        api: Ours; its account may create TokenReviews and SubjectAccessReviews.
        clock: Monotonic seconds.
    """

    def __init__(self, api: Api, *, clock: Callable[[], float] = time.monotonic) -> None:
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
        """Who shows this `Authorization` header.

        Raises:
            VisitorRefused: 401, the API server does not accept him; 503, he cannot be reviewed now.
        """
        token = bearer(authorization)
        if not token:
            raise VisitorRefused(401, "show a token: Authorization: Bearer TOKEN")
        try:
            user = await self._users.get(fingerprint(token), lambda: user_of(self._api, token))
        except (Busy, ClientError) as error:
            raise VisitorRefused(503, f"the token cannot be reviewed now: {error}") from error
        if user is None:
            raise VisitorRefused(401, "the API server does not know this token")
        return user

    async def sight(self, user: User, namespaces: Collection[str]) -> Sight:
        """What he may see.

        Args:
            user: Who.
            namespaces: Those that have claims, and those that he names.

        Raises:
            VisitorRefused: 503, his rights cannot be reviewed now.
        """
        devices, nodes, everywhere = await asyncio.gather(
            *(self.lists(user, resource) for resource in (GPU_DEVICES, NODES, VGPU_CLAIMS))
        )
        readable = await self._listed_in(() if everywhere else namespaces, user, VGPU_CLAIMS)
        return Sight(user.name, devices, nodes, everywhere, readable)

    async def sight_of_volumes(
        self, user: User, sight: Sight, namespaces: Collection[str]
    ) -> Sight:
        """The same with those of the namespaces whose volumes he may see.

        Raises:
            VisitorRefused: 503, his rights cannot be reviewed now.
        """
        listed = await self._listed_in(namespaces, user, PERSISTENT_VOLUME_CLAIMS)
        return replace(sight, volumes=listed)

    async def _listed_in(
        self, namespaces: Collection[str], user: User, resource: Resource
    ) -> frozenset[str]:
        listed: list[str] = []
        for some in _in_batches(namespaces):
            allowed = await asyncio.gather(*(self.lists(user, resource, name) for name in some))
            listed += compress(some, allowed)
        return frozenset(listed)

    async def lists(self, user: User, resource: Resource, namespace: str = "") -> bool:
        """Whether he may list a kind, in one namespace or (empty) in all.

        Raises:
            VisitorRefused: 503, that cannot be reviewed now.
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
