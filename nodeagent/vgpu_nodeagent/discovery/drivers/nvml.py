"""How NVML's answers are taken: a value that a device or driver lacks is no error."""

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
"""Errors that are the driver's as a whole. Every other is that of the device that was asked."""

UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
    }
)
"""What a device, its driver or this process does not have; waiting does not change it."""


def of_each(devices: Iterable[tuple[int, Any, str]], read: Callable[[Any, str], T]) -> dict[str, T]:
    """Return what `read` returns of each device, by UUID; one that fails is left out.

    One device that fails must not end a loop over all of them.
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
    """The result of a call that not every device or driver supports."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED:
            return default
        raise


def bus_id(handle: Any) -> str:
    """Where the device is on the PCI bus; empty where it is unknown."""
    return optional(lambda: text(pynvml.nvmlDeviceGetPciInfo(handle).busId), "")


def text(value: str | bytes) -> str:
    """A name; some versions of pynvml give bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
