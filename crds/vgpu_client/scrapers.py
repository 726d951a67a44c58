"""Decide who may read metrics: accounts that the API server allows to `get` the path `/metrics`.

A scraper presents a token, which a TokenReview resolves to a user. A SubjectAccessReview checks
that a role grants that user the path. Kubelets check their own scrapers in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import ClientError
from vgpu_client.reviews import Answers, Busy, bearer, fingerprint, may, user_of

PATH = "/metrics"
ALLOWED_S = 60.0
REFUSED_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a scraper: an HTTP status, 200 if it may read, and the reason."""

    status: int
    text: str = ""


_ALLOWED = Answer(200)


class Scrapers:
    """Reviews scrapers.

    Args:
        api: Our client; its account may create TokenReviews and SubjectAccessReviews.
        clock: The time.
    """

    def __init__(self, api: Api, *, clock: Clock | None = None) -> None:
        self._api = api
        self._answers: Answers[bytes, Answer] = Answers(
            _good_for, owner=lambda _, answer: "" if answer.status == 200 else None, clock=clock
        )

    async def review(self, authorization: str) -> Answer:
        """Return the response to a request with this `Authorization` header."""
        token = bearer(authorization)
        if not token:
            return Answer(401, "show a token: Authorization: Bearer TOKEN")
        try:
            return await self._answers.get(fingerprint(token), lambda: self._reviewed(token))
        except Busy:
            return Answer(503, "too many scrapers are being reviewed; try again")

    async def _reviewed(self, token: str) -> Answer:
        try:
            user = await user_of(self._api, token)
            if user is None:
                return Answer(401, "the API server does not know this token")
            if await may(self._api, user, {"nonResourceAttributes": {"path": PATH, "verb": "get"}}):
                return _ALLOWED
            return Answer(403, f'user "{user.name}" cannot get path "{PATH}"')
        except ClientError as error:
            return Answer(503, f"the scraper cannot be reviewed now: {error}")


def _good_for(answer: Answer) -> float:
    """Return how long to cache it; an unreachable API server proves nothing about the scraper."""
    if answer.status == 503:
        return 0.0
    return ALLOWED_S if answer.status == 200 else REFUSED_S
