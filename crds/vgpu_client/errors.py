"""What can go wrong between us and the API server, as one small tree.

The tree answers the only question a writer has afterwards: was it done? An `ApiError` is the
server's own no. `Unreachable` means nothing was sent. `Unknown` means that it was sent and no
answer came, so that only reading the object again shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpu_api.errors import VgpuError


class ClientError(VgpuError):
    """Whatever the client raises."""


class LoginError(ClientError):
    """No usable credentials: the kubeconfig or the service account cannot be read."""


class Unreachable(ClientError):
    """The server could not be reached; the request was not carried out."""


class Unknown(ClientError):
    """A write was sent and its outcome is not known: it timed out or the connection broke."""


class StreamBroken(ClientError):
    """A watch stream broke, or was silent for too long; what happened meanwhile is not known."""


class DataRestored(VgpuError):
    """The server's data went back to an earlier state: what this process knows was never so.

    No fault of a request: nothing that the process holds in memory can be trusted any more.
    """


class ApiError(ClientError):
    """The server answered with an error.

    Attributes:
        status: The HTTP status code.
        reason: The machine-readable word of the Status object, for example `AlreadyExists`.
        message: The server's sentence.
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
    """401: the credentials are not, or no longer, valid."""


class Forbidden(ApiError):
    """403: not allowed, or denied by admission."""


class NotFound(ApiError):
    """404: no such object."""


class Conflict(ApiError):
    """The object is not as we thought: a stale resourceVersion, uid or patch test."""


class AlreadyExists(Conflict):
    """409 on create: the name is taken."""


class PatchDoesNotFit(Conflict):
    """422 because a JSON patch does not fit the object: a `test` fails, or a path is missing."""


class Gone(ApiError):
    """410: the resourceVersion or the page asked for is no longer kept."""


class Invalid(ApiError):
    """422: the object breaks its schema or rules; `causes` names the fields."""


class TooManyRequests(ApiError):
    """429: not carried out; ask again after `retry_after` seconds."""

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
    """5xx: the server failed; whether a write took effect before that is not certain."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}

# All that the server returns when a JSON patch cannot be carried out, a failed `test` included: no
# cause, no detail. Every other 422 (schema, rules, admission) has more than this.
_PATCH_DOES_NOT_FIT = "the server rejected our request due to an error in our request"


def error_from_status(
    status: int, body: Mapping[str, Any], *, retry_after: float | None = None
) -> ApiError:
    """The error that an answer means.

    Args:
        status: The HTTP status code.
        body: The decoded Status object, or an empty mapping where the answer was none.
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
