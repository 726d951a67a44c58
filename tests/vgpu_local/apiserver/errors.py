"""The API server's refusals: an HTTP code and a `metav1.Status` with the real server's text.

Clients branch on code and reason, people read the message, and kubectl prints the causes, so all
three follow the real server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vgpu_local.apiserver.kinds import Resource


@dataclass(frozen=True, slots=True)
class Cause:
    """A fault of an object: the field, the class of error, and the message."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class StatusError(Exception):
    """A refused request.

    `code` is the HTTP status, `reason` the machine word (`Conflict`), `details` the Status
    details (name, group, kind, causes).
    """

    def __init__(
        self, code: int, reason: str, message: str, *, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> dict[str, Any]:
        """Return the `Status` object sent as the answer's body or inside a watch's ERROR event."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body


class UnknownPathError(Exception):
    """404 for a URL that the server does not serve: answered in plain text, not as a Status."""


def bad_request(message: str) -> StatusError:
    """400: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def not_found(resource: Resource, name: str) -> StatusError:
    """404 for an object."""
    return StatusError(
        404,
        "NotFound",
        f'{resource.qualified} "{name}" not found',
        details=_about(resource.group, resource.plural, name),
    )


def already_exists(resource: Resource, name: str) -> StatusError:
    """409 on create."""
    return StatusError(
        409,
        "AlreadyExists",
        f'{resource.qualified} "{name}" already exists',
        details=_about(resource.group, resource.plural, name),
    )


def conflict(resource: Resource, name: str, why: str, *, subresource: str = "") -> StatusError:
    """409: the object is not in the state that the caller assumed."""
    plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
    qualified = f"{plural}.{resource.group}" if resource.group else plural
    return StatusError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified} "{name}": {why}',
        details=_about(resource.group, plural, name),
    )


def stale(resource: Resource, name: str) -> StatusError:
    """409: the resourceVersion sent is not the current one."""
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version"
        " and try again",
    )


def forbidden(resource: Resource, name: str, why: str) -> StatusError:
    """403: understood and refused."""
    return StatusError(
        403,
        "Forbidden",
        f'{resource.qualified} "{name}" is forbidden: {why}',
        details=_about(resource.group, resource.plural, name),
    )


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> StatusError:
    """422: the object breaks its schema or its kind's rules."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    sentences = [str(cause) for cause in causes]
    text = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    details = _about(resource.group, resource.kind, name)
    details["causes"] = [
        {"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes
    ]
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)


def patch_failed() -> StatusError:
    """422: a JSON patch whose test failed or whose path is absent; like the real message."""
    return StatusError(
        422, "Invalid", "the server rejected our request due to an error in our request", details={}
    )


def expired(requested: int, oldest: int) -> StatusError:
    """410: the watch or the continue token is older than what the server remembers."""
    return StatusError(410, "Expired", f"too old resource version: {requested} ({oldest})")


def too_large(requested: int, current: int) -> StatusError:
    """504: a resourceVersion from the future, as after a restore from an older backup."""
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {requested}, current: {current}",
        details={
            "causes": [
                {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            ],
            "retryAfterSeconds": 1,
        },
    )


def internal(message: str) -> StatusError:
    """500."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")


def _about(group: str, kind: str, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name, "kind": kind}
    if group:
        details["group"] = group
    return details
