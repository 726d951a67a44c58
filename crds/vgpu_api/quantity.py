"""Kubernetes quantities as exact integers.

The API server canonicalises quantities (`4000` becomes `4k`, `16384Mi` becomes `16Gi`), so a reader
must accept every spelling. Values are exact; floats are never used. Source: apimachinery's
resource.Quantity (suffixes n u m "" k M G T P E, Ki Mi Gi Ti Pi Ei, eN EN).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from vgpu_api.errors import QuantityError

MIB = 1 << 20
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?$"
"""The sizes that the API accepts: no sign, no exponent, no suffix for fractions of a byte."""
MIB_EXPECTED = "a whole number of MiB, 1Mi or more (for example 8Gi or 8192Mi)"
"""The rule in CRD and admission errors for a size that is not a whole number of MiB."""

_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_BINARY = {
    suffix: 1 << (10 * (i + 1)) for i, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
}
_FORM = re.compile(
    r"^(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<exponent>[eE][+-]?[0-9]{1,3})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)\Z"
)
_MAX_LENGTH = 64


@lru_cache(maxsize=4096)
def parse(text: str | int) -> Fraction:
    """Return the exact value of a quantity in its base unit.

    Raises:
        QuantityError: `text` is not a quantity.
    """
    if isinstance(text, int):
        return Fraction(text)
    match = _FORM.match(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise QuantityError(text, "a Kubernetes quantity such as 8Gi, 8192Mi or 4000")
    value = Fraction(match["number"])
    if match["exponent"]:
        value *= Fraction(10) ** int(match["exponent"][1:])
    elif match["suffix"] in _BINARY:
        value *= _BINARY[match["suffix"]]
    else:
        value *= _DECIMAL[match["suffix"] or ""]
    return -value if match["sign"] == "-" else value


def has_binary_suffix(text: str | int) -> bool:
    """Return True if the suffix is Ki, Mi, Gi …: the quantity then always counts bytes."""
    return isinstance(text, str) and text.endswith("i")


def whole(text: str | int) -> int:
    """Parse a quantity that must be a whole number ≥ 0, such as a count or percentage.

    Raises:
        QuantityError: The text is not a quantity, is negative, or has a fraction.
    """
    value = parse(text)
    if value < 0 or value.denominator != 1:
        raise QuantityError(text, "a whole number, 0 or more")
    return value.numerator


def mib(text: str | int) -> int:
    """Parse a size in bytes as a whole number of MiB, at least 1.

    Raises:
        QuantityError: The text is not a quantity, is below 1Mi, or not a whole number of MiB.
    """
    value = parse(text) / MIB
    if value < 1 or value.denominator != 1:
        raise QuantityError(text, MIB_EXPECTED)
    return value.numerator


def format_mib(size: int) -> str:
    """Return MiB as the canonical quantity: `8192` → `8Gi`, `4095` → `4095Mi`, `0` → `0`."""
    if size == 0:
        return "0"
    suffixes = ("Mi", "Gi", "Ti", "Pi")
    step = 0
    while size % 1024 == 0 and step < len(suffixes) - 1:
        size //= 1024
        step += 1
    return f"{size}{suffixes[step]}"


@lru_cache(maxsize=4096, typed=True)
def read_mib(text: str | int) -> int:
    """Parse a size that the operator or the API server wrote as MiB; 0 is allowed.

    Only few different sizes occur, but very often, so results are cached.

    Raises:
        QuantityError: The text is not a quantity or not a whole number of MiB.
    """
    return 0 if parse(text) == 0 else mib(text)
