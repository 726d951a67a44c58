"""Errors between us and the API server, as one small tree.

The tree answers the only question that a writer has afterwards: did the write take effect? An
`ApiError` is a refusal by the server. `Unreachable` means that nothing was sent. `Unknown` means
that the write was sent but no response came, so only reading the object again can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpu_api.errors import VgpuError


class ClientError(VgpuError):
    """The base class of the client's errors."""


class LoginError(ClientError):
    """No usable credentials: the kubeconfig or the service account cannot be read."""


class Unreachable(ClientError):
    """The server could not be reached; the request was not carried out."""


class Unknown(ClientError):
    """A write was sent and its outcome is unknown: it timed out or the connection broke."""


class StreamBroken(ClientError):
    """A watch stream broke or was silent for too long; changes may have been missed."""


class DataRestored(VgpuError):
    """The server's data was restored from a backup: this process knows states that never existed.

    No single request is at fault: nothing that the process holds in memory can be trusted any more.
    """


class ApiError(ClientError):
    """The server answered with an error.

    Attributes:
        status: The HTTP status code.
        reason: The machine-readable reason of the Status object, for example `AlreadyExists`.
        message: The server's message.
        details: The Status object's details (`causes` have the fields of a 422); may be empty.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details: Mapping[str, Any] = details or {}


class Unauthorized(ApiError):
    """401: the credentials are invalid or have expired."""


class Forbidden(ApiError):
    """403: the request is not allowed, or admission denied it."""


class NotFound(ApiError):
    """404: no such object."""


class Conflict(ApiError):
    """The object is not in the expected state: a stale resourceVersion, uid or patch test."""


class AlreadyExists(Conflict):
    """409 on create: the name is taken."""


class PatchDoesNotFit(Conflict):
    """422: a JSON patch does not fit the object; a `test` fails, or a path is missing."""


class Gone(ApiError):
    """410: the requested resourceVersion or page is no longer kept."""


class Invalid(ApiError):
    """422: the object violates its schema or rules; `causes` names the fields."""


class TooManyRequests(ApiError):
    """429: the request was not carried out; retry after `retry_after` seconds."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float = 1.0,
    ) -> None:
        super().__init__(message, status=status, reason=reason, details=details)
        self.retry_after = retry_after


class ServerError(ApiError):
    """5xx: the server failed; a write may have taken effect before that."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}

# This is all that the server returns if it cannot carry out a JSON patch, as when a `test` fails:
# no cause and no detail. Every other 422 (schema, rules, admission) has more than this.
_PATCH_DOES_NOT_FIT = "the server rejected our request due to an error in our request"


def error_from_status(
    status: int, body: Mapping[str, Any], *, retry_after: float | None = None
) -> ApiError:
    """Return the error for a response.

    Args:
        status: The HTTP status code.
        body: The decoded Status object, or an empty mapping if the response was none.
        retry_after: The value of the Retry-After header in seconds, if there was one.
    """
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or "no message")
    details = body.get("details") or {}
    if status == 429:
        wait = retry_after if retry_after is not None else details.get("retryAfterSeconds", 1.0)
        return TooManyRequests(
            message, status=status, reason=reason, details=details, retry_after=float(wait)
        )
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    elif kind is Invalid and not details and message == _PATCH_DOES_NOT_FIT:
        kind = PatchDoesNotFit
    return kind(message, status=status, reason=reason, details=details)
