"""Reads from the sources of this checkout the constants that a device can confirm or refute.

A finding names the constant, its value here and the measured value, so that the reader need not
search the code for the meaning of a figure.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: A constant holds if the measured value is within this factor of it.
FACTOR = 2.0
_NUMBER = r"(?:U?INT64_C\()?(-?[0-9][0-9.]*(?:e-?[0-9]+)?)u?\)?"


class UnknownConstant(LookupError):
    """The sources have no such constant: the check and the library are of different commits."""


def constant(file: str, name: str) -> float:
    """Return the value of a `#define`, an enumerator or a default in a file below libvgpu/.

    Raises:
        UnknownConstant: The file has none of that name with a plain number.
    """
    text = (ROOT / file).read_text()
    for form in (rf"#define {name} +\(?{_NUMBER}", rf"\b{re.escape(name)} = {_NUMBER}[,;]"):
        found = re.search(form, text)
        if found:
            return float(found[1])
    raise UnknownConstant(f"{file} has no constant {name}")


def calibration(
    file: str, name: str, measured: float, *, factor: float = FACTOR, unit: str = "ns"
) -> dict[str, Any]:
    """Return a comparison of a measured value with the constant that represents it."""
    value = constant(file, name)
    fits = value / factor <= measured <= value * factor if value else measured == 0
    return _row(file, name, value, measured, unit, fits=fits)


def at_most(file: str, name: str, measured: float, *, unit: str = "ns") -> dict[str, Any]:
    """Return a comparison with a constant that the measured value must not exceed."""
    value = constant(file, name)
    return _row(file, name, value, measured, unit, fits=abs(measured) <= value)


def at_least(file: str, name: str, measured: float, *, unit: str = "ns") -> dict[str, Any]:
    """Return a comparison with a constant that the measured value must reach."""
    value = constant(file, name)
    return _row(file, name, value, measured, unit, fits=measured >= value)


def _row(
    file: str, name: str, value: float, measured: float, unit: str, *, fits: bool
) -> dict[str, Any]:
    return {
        "constant": f"libvgpu/{file}: {name}",
        "is": value,
        "measured": round(measured, 9),
        "unit": unit,
        "fits": fits,
    }
