"""A refused object: what the API server answers the user with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vgpu_api.errors import BadInput, VgpuError


class Denied(VgpuError):
    """The object is refused; `message` names field, value and what would be right."""

    code = 422

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


@contextmanager
def denying() -> Iterator[None]:
    """Bad input inside becomes a refusal."""
    try:
        yield
    except BadInput as error:
        raise Denied(str(error)) from error
