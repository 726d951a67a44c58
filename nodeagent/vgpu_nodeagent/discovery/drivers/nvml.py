"""Wraps NVML's calls, so that a value that a device or driver lacks is not an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pynvml

logger = logging.getLogger(__name__)

T = TypeVar("T")

DRIVER_LOST = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    }
)
"""Errors of the whole driver. Every other error concerns the device in the call."""

UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
    }
)
"""Errors of missing support or rights; they do not go away by waiting."""


def of_each(devices: Iterable[tuple[int, Any, str]], read: Callable[[Any, str], T]) -> dict[str, T]:
    """Return the result of `read` for each device, by UUID.

    A device that fails is left out, so that it does not hide the others.
    """
    found = {}
    for _, handle, uuid in devices:
        try:
            found[uuid] = read(handle, uuid)
        except pynvml.NVMLError as error:
            if error.value in DRIVER_LOST:
                raise
            logger.debug("GPU %s has no reading: %s", uuid, error)
    return found


def optional(call: Callable[[], T], default: T) -> T:
    """Return the result of a call, or the default if the device or driver does not support it."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED:
            return default
        raise


def bus_id(handle: Any) -> str:
    """Return the PCI bus id of a device; empty if unknown."""
    return optional(lambda: text(pynvml.nvmlDeviceGetPciInfo(handle).busId), "")


def text(value: str | bytes) -> str:
    """Return a name as text; some versions of pynvml return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
