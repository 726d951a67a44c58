"""How NVML's answers are taken: a value that a device or driver lacks is no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")


def optional(call: Callable[[], T], default: T) -> T:
    """The result of a call that not every device or driver supports."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            pynvml.NVML_ERROR_NO_PERMISSION,
        ):
            return default
        raise


def bus_id(handle: Any) -> str:
    """Where the device is on the PCI bus; empty where it is unknown."""
    return optional(lambda: text(pynvml.nvmlDeviceGetPciInfo(handle).busId), "")


def text(value: str | bytes) -> str:
    """A name; some versions of pynvml give bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
