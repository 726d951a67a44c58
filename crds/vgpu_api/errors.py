"""The root of the project's error tree, and the errors of reading what people wrote."""

from __future__ import annotations

_MAX_VALUE = 160


class VgpuError(Exception):
    """Anything that this project raises on purpose."""


class BadInput(VgpuError):
    """Something a person wrote is wrong; says which field, which value, what would be right."""

    def __init__(self, *, field: str, value: object, expected: str) -> None:
        """`field` is a path such as `spec.requests[0].memory`."""
        self.field = field
        self.value = value
        self.expected = expected
        shown = repr(value)
        if len(shown) > _MAX_VALUE:
            shown = f"{shown[:_MAX_VALUE]}…"
        super().__init__(
            f"{field}: {shown} is not {expected}" if field else f"{shown} is not {expected}"
        )


class QuantityError(BadInput, ValueError):
    """A quantity that cannot be read, or is out of its range. The caller adds the field."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(field="", value=value, expected=expected)
