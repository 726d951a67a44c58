"""The refusal of an object, in the form in which the API server shows it to users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vgpu_api.errors import BadInput, VgpuError


class Denied(VgpuError):
    """The object is refused. `message` names the field, its value, and the valid values."""

    code = 422

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


@contextmanager
def denying() -> Iterator[None]:
    """Turn `BadInput` inside the block into a refusal."""
    try:
        yield
    except BadInput as error:
        raise Denied(str(error)) from error
