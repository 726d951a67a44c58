"""Reads the CEL expressions of device selectors, as far as our own selectors can express them.

    expression = all {"||" all}          all  = term {"&&" term}
    term       = "(" expression ")" | field ("==" | "!=") text | field "in" "[" text {"," text} "]"
    field      = device.driver | device.attributes["DOMAIN"].NAME

An expression that means something else is refused: a device that it does not want must never be
chosen, and one that it wants should not be passed over without a word.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn

from vgpu_api import dra
from vgpu_api.errors import BadInput, Fault

_TOKEN = re.compile(
    r"\s*(?:(?P<text>\"(?:[^\"\\]|\\.)*\")|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>==|!=|&&|\|\||[().,\[\]]))"
)
_EXPECTED = (
    "comparisons of productName or uuid with ==, != and in, joined by && and ||, such as "
    'device.attributes["vgpu.dev"].productName == "NVIDIA A100-SXM4-80GB"'
)
_TYPE = "hami-gpu"
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """The devices that an expression wants; an empty set wants every value.

    Attributes:
        models: The models of which one will do.
        not_models: The models that are excluded.
        uuids: The devices of which one will do.
        not_uuids: The devices that are excluded.
    """

    models: frozenset[str] = frozenset()
    not_models: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    not_uuids: frozenset[str] = frozenset()

    def together(self, other: Wanted, path: str) -> Wanted:
        """Return what both want.

        Raises:
            BadInput: No device can be what both want.
        """
        return Wanted(
            _both(self.models, other.models, path),
            self.not_models | other.not_models,
            _both(self.uuids, other.uuids, path),
            self.not_uuids | other.not_uuids,
        )


_ANY = Wanted()


def _both(first: frozenset[str], other: frozenset[str], path: str) -> frozenset[str]:
    if not first or not other:
        return first or other
    if not first & other:
        raise BadInput(
            field=path, value=sorted(first | other), detail="no device can have all these values"
        )
    return first & other


def read_expression(expression: str, path: str) -> Wanted:
    """Return the devices that an expression wants.

    Args:
        expression: The CEL expression.
        path: The field's path for errors.

    Raises:
        BadInput: The expression cannot be honoured.
    """
    reader = _Reader(expression, path)
    wanted = reader.either(0)
    if reader.peek():
        reader.refuse(f"{reader.peek()} is not understood here")
    return wanted


class _Reader:
    """A recursive descent over the tokens of one expression."""

    def __init__(self, expression: str, path: str) -> None:
        self._expression = expression
        self._path = path
        self._tokens = self._split()
        self._at = 0

    def _split(self) -> list[str]:
        found, end = [], 0
        text = self._expression.rstrip()
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None:
                self.refuse(f"{text[end : end + 20].strip()} is not understood")
            found.append(match[0].strip())
            end = match.end()
        return found

    def refuse(self, why: str) -> NoReturn:
        raise BadInput(
            field=self._path,
            value=self._expression,
            fault=Fault.UNSUPPORTED,
            detail=f"{why}; supported are {_EXPECTED}",
        )

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *allowed: str) -> str:
        token = self.peek()
        if not token or (allowed and token not in allowed):
            self.refuse(f"{token or 'its end'} is not understood here")
        self._at += 1
        return token

    def either(self, depth: int) -> Wanted:
        found = [self._all(depth)]
        while self.peek() == "||":
            self._take()
            found.append(self._all(depth))
        return found[0] if len(found) == 1 else self._one_of(found)

    def _one_of(self, found: list[Wanted]) -> Wanted:
        """Join alternatives, which must be values of one attribute."""
        if all(each == Wanted(models=each.models) and each.models for each in found):
            return Wanted(models=frozenset().union(*(each.models for each in found)))
        if all(each == Wanted(uuids=each.uuids) and each.uuids for each in found):
            return Wanted(uuids=frozenset().union(*(each.uuids for each in found)))
        self.refuse("|| joins values of one attribute only")

    def _all(self, depth: int) -> Wanted:
        found = self._term(depth)
        while self.peek() == "&&":
            self._take()
            found = found.together(self._term(depth), self._path)
        return found

    def _term(self, depth: int) -> Wanted:
        if depth > _MAX_DEPTH:
            self.refuse("it is nested too deeply")
        if self.peek() == "(":
            self._take()
            found = self.either(depth + 1)
            self._take(")")
            return found
        name = self._field()
        sign = self._take("==", "!=", "in")
        if sign == "in":
            alternatives = [self._compared(name, each, is_equal=True) for each in self._texts()]
            return alternatives[0] if len(alternatives) == 1 else self._one_of(alternatives)
        return self._compared(name, self._text(), is_equal=sign == "==")

    def _field(self) -> str:
        """Return the name of an attribute, or `driver`."""
        self._take("device")
        self._take(".")
        if self._take("driver", "attributes") == "driver":
            return "driver"
        self._take("[")
        domain = self._text()
        if domain not in dra.CLASSES:
            self.refuse(f"there are no attributes of {domain}")
        self._take("]")
        self._take(".")
        return self._take()

    def _texts(self) -> list[str]:
        """Return the texts of a list, at least one."""
        self._take("[")
        found = [self._text()]
        while self._take(",", "]") == ",":
            found.append(self._text())
        return found

    def _text(self) -> str:
        token = self._take()
        try:
            text = json.loads(token)
        except ValueError:
            text = None
        if not isinstance(text, str) or not text:
            self.refuse(f"{token} is no text in double quotes")
        return text

    def _compared(self, name: str, value: str, *, is_equal: bool) -> Wanted:
        if "," in value:  # it separates values in the annotations
            self.refuse("a value with a comma cannot be chosen")
        match name:
            case "productName":
                one = frozenset({value})
                return Wanted(models=one) if is_equal else Wanted(not_models=one)
            case "uuid":
                one = frozenset({value})
                return Wanted(uuids=one) if is_equal else Wanted(not_uuids=one)
            case "driver" if is_equal and value in {dra.DRIVER, *dra.CLASSES}:
                return _ANY
            case "type" if is_equal and value == _TYPE:
                return _ANY
        self.refuse(f"{name} with this value is not chosen by")
