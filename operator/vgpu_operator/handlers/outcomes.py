"""The outcome of a review: counted, logged, and a refusal that its asker understands."""

from __future__ import annotations

import logging
from typing import Any

import kopf

from vgpu_client.errors import ClientError
from vgpu_operator.admission import Denied
from vgpu_operator.metrics import WEBHOOK_REQUESTS

logger = logging.getLogger(__name__)

_UNAVAILABLE = 503


class answering:  # noqa: N801 - reads as a statement
    """What the pure functions refuse becomes kopf's refusal, is counted by its code, and logged.

    At INFO: a user's mistake is none of the administrator's.

    Args:
        kind: What is reviewed: `pod`, `claim` or `configuration`.
        body: The object; one of a controller has no name yet.
        namespace: The request's.
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
            # Fail closed, with a message that it is not the user's fault.
            WEBHOOK_REQUESTS.labels(code=_UNAVAILABLE).inc()
            text = f"what decides about it cannot be read now, try again: {error}"
            logger.warning("%s %s refused: %s", self._kind, self._name, text)
            raise kopf.AdmissionError(text, code=_UNAVAILABLE) from error
        if error is None:
            WEBHOOK_REQUESTS.labels(code=200).inc()
