"""Credentials that never change."""

from __future__ import annotations

from collections.abc import Mapping


class FixedCredentials:
    """A bearer token, or nothing if it is empty."""

    def __init__(self, bearer: str = "") -> None:
        self._bearer = bearer

    async def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._bearer}"} if self._bearer else {}

    async def renew(self) -> None:
        pass
