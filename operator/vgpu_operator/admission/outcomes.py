"""Counts and logs each review, and converts an error to a refusal that users understand."""

from __future__ import annotations

import logging
from typing import Any

import kopf

from vgpu_client.errors import ClientError
from vgpu_operator.admission.rules import Denied
from vgpu_operator.metrics import WEBHOOK_REQUESTS

logger = logging.getLogger(__name__)

_UNAVAILABLE = 503


class answering:  # noqa: N801 - reads as a statement
    """A context in which a review runs; errors of the rules become Kopf's refusals.

    Each review is counted by its response code. Refusals are logged at INFO, because a user's
    mistake does not need the administrator's attention.

    Args:
        kind: The kind of the object, for the log: `pod`, `job`, `claim` or `configuration`.
        body: The object. If a controller creates it, it has no name yet.
        namespace: The namespace of the request.
    """

    def __init__(self, kind: str, body: dict[str, Any], namespace: str | None) -> None:
        self._kind = kind
        metadata = body.get("metadata") or {}
        self._name = f"{namespace}/{metadata.get('name') or metadata.get('generateName', '')}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Denied):
            WEBHOOK_REQUESTS.labels(code=error.code).inc()
            logger.info("%s %s refused: %s", self._kind, self._name, error.message,
                        extra={self._kind: self._name, "code": error.code})  # fmt: skip
            raise kopf.AdmissionError(error.message, code=error.code) from error
        if isinstance(error, ClientError):
            # Fail closed, and tell the user that the object itself is not to blame.
            WEBHOOK_REQUESTS.labels(code=_UNAVAILABLE).inc()
            text = f"cannot read required objects, try again: {error}"
            logger.warning("%s %s refused: %s", self._kind, self._name, text)
            raise kopf.AdmissionError(text, code=_UNAVAILABLE) from error
        if error is None:
            WEBHOOK_REQUESTS.labels(code=200).inc()
