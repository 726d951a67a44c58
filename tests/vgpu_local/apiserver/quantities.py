"""Quantities as the API server writes them back: `4000` becomes `4k`, `16384Mi` becomes `16Gi`.

A client that reads a resource amount from the API meets the canonical form and not what was sent.
Source: apimachinery's resource.Quantity (CanonicalizeBytes).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_WORD = {power: word for word, power in _DECIMAL.items()}
_BINARY_WORD = {power: word for word, power in _BINARY.items()}
_FORM = re.compile(
    # a suffix without a number means 0
    r"(?P<sign>[+-]?)(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+|(?=.))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i|))"
)
_SMALLEST = 10**9
_REGEX_SHOWN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"


class MalformedQuantityError(ValueError):
    """The text is no quantity; the message is the real server's."""

    def __init__(self) -> None:
        super().__init__(f"quantities must match the regular expression '{_REGEX_SHOWN}'")


@lru_cache(maxsize=4096)
def value_of(text: str) -> Fraction:
    """Return the exact value, rounded up to nano as the real one does.

    Raises:
        MalformedQuantityError: `text` is not a quantity.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise MalformedQuantityError
    value = Fraction(match["number"] or 0)
    if match["exponent"]:
        value *= Fraction(10) ** int(match["exponent"])
    elif match["suffix"] in _BINARY:
        value *= 1024 ** _BINARY[match["suffix"]]
    else:
        value *= Fraction(1000) ** _DECIMAL[match["suffix"] or ""]
    value = Fraction(-(-value.numerator * _SMALLEST // value.denominator), _SMALLEST)
    return -value if match["sign"] == "-" else value


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Return the canonical spelling.

    Raises:
        MalformedQuantityError: `text` is not a quantity.
    """
    value = value_of(text)
    if value == 0:
        return "0"
    match = _FORM.fullmatch(text)
    assert match is not None  # value_of parsed it
    if match["suffix"] in _BINARY and value.denominator == 1 and abs(value) >= 1024:
        return _binary(value.numerator)
    if match["exponent"]:
        number, power = _thousands(value)
        return f"{number}e{3 * power}" if power else str(number)
    number, power = _thousands(value)
    return f"{number}{_DECIMAL_WORD[power]}"


def _binary(number: int) -> str:
    power = 0
    while number % 1024 == 0 and power < 6:
        number //= 1024
        power += 1
    return f"{number}{_BINARY_WORD[power]}" if power else str(number)


def _thousands(value: Fraction) -> tuple[int, int]:
    """Return `value` as a whole number and the highest possible power of 1000."""
    power = -3
    number = int(value * _SMALLEST)
    while number % 1000 == 0 and power < 6:
        number //= 1000
        power += 1
    return number, power
