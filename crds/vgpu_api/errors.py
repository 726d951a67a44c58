"""The root of the project's error tree, and the errors about invalid input."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

_MAX_VALUE = 160


class VgpuError(Exception):
    """The base class of all errors that this project raises on purpose."""


class Fault(StrEnum):
    """The kinds of field errors, spelled as in Kubernetes' own validation.

    Source: `ErrorType.String` of k8s.io/apimachinery/pkg/util/validation/field.
    """

    INVALID = "Invalid value"
    UNSUPPORTED = "Unsupported value"
    DUPLICATE = "Duplicate value"
    NOT_FOUND = "Not found"
    TOO_MANY = "Too many"
    REQUIRED = "Required value"
    FORBIDDEN = "Forbidden"
    TOO_LONG = "Too long"


_WITHOUT_VALUE = frozenset({Fault.REQUIRED, Fault.FORBIDDEN, Fault.TOO_LONG})


class BadInput(VgpuError):
    """A field error: `path: Invalid value: 150: must be a whole percentage, 0 to 100`.

    The webhook, extender, engine, agent and command line print it unchanged, so users see the
    format of Kubernetes' own refusals.

    Attributes:
        field: The path, such as `spec.requests[0].memory`; empty if the caller adds it.
        fault: The kind of error.
        value: The invalid value. `Required value`, `Forbidden` and `Too long` omit it.
        detail: The rest of the message: the rule, or the correct value.
    """

    def __init__(
        self,
        *,
        field: str,
        value: object = None,
        expected: str = "",
        detail: str = "",
        fault: Fault = Fault.INVALID,
    ) -> None:
        """Create the error. `expected` is short for a `detail` that begins with `must be`."""
        self.field = field
        self.fault = fault
        self.value = value
        self.detail = f"must be {expected}" if expected else detail
        given = () if fault in _WITHOUT_VALUE else (shown(value),)
        parts = (field, fault.value, *given, self.detail)
        super().__init__(": ".join(part for part in parts if part))

    @staticmethod
    def forbidden(field: str, detail: str) -> BadInput:
        """Return the error for a field that must not be set here; `detail` says why."""
        return BadInput(field=field, fault=Fault.FORBIDDEN, detail=detail)

    @staticmethod
    def required(field: str, detail: str = "") -> BadInput:
        """Return the error for a missing or empty field."""
        return BadInput(field=field, fault=Fault.REQUIRED, detail=detail)

    @staticmethod
    def unsupported(field: str, value: object, supported: Iterable[str]) -> BadInput:
        """Return the error for an unsupported value."""
        values = ", ".join(shown(each) for each in supported)
        return BadInput(
            field=field,
            value=value,
            fault=Fault.UNSUPPORTED,
            detail=f"supported values: {values}",
        )

    @staticmethod
    def too_many(field: str, count: int, most: int, items: str = "items") -> BadInput:
        """Return the error for a list that is too long."""
        return BadInput(
            field=field,
            value=count,
            fault=Fault.TOO_MANY,
            detail=f"must have at most {most} {items}",
        )


class QuantityError(BadInput, ValueError):
    """A quantity that is malformed or out of range. The caller adds the field."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(field="", value=value, expected=expected)


def shown(value: Any) -> str:
    """Return a value as JSON, truncated if it is too long for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text.encode(errors="backslashreplace").decode()  # lone surrogates cannot be printed
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"
