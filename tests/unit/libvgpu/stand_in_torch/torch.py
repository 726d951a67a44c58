"""Stands in for PyTorch with only the parts that the check for real GPUs calls.

Memory, streams, events and graphs are the driver's, which in the tests is the simulated one, so
limits really apply. It computes nothing: matrices hold one value, because nobody asks for more.

`STAND_IN_TORCH` makes it go wrong: `no-device`, `hangs`, `dies`, `escapes` (it gets more than it
may).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

__version__ = "stand-in"
uint8 = "uint8"
OUT_OF_MEMORY = 2
GLOBAL_CAPTURE = 0
MODE = os.environ.get("STAND_IN_TORCH", "")
_escaped: list[int] = []


class OutOfMemoryError(RuntimeError):
    """Like PyTorch's error."""


def _call(name: str, *arguments: Any) -> None:
    result = getattr(_driver(), name)(*arguments)
    if result == OUT_OF_MEMORY:
        raise OutOfMemoryError(name)
    if result:
        raise RuntimeError(f"{name}: {result}")


def _driver() -> ctypes.CDLL:
    if "driver" not in _state:
        driver = _state["driver"] = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        _call("cuInit", 0)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        _call("cuCtxSetCurrent", context)
        _call("cuStreamCreate", ctypes.byref(_stream), 1)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuModuleLoadData", ctypes.byref(module), b"image")
        _call("cuModuleGetFunction", ctypes.byref(function), module, b"busy_1ms")
        _state["kernel"] = function
        return driver
    return _state["driver"]  # type: ignore[no-any-return]


_state: dict[str, Any] = {}
_stream = ctypes.c_void_p()


class Block:
    """A tensor whose elements all have one value."""

    def __init__(self, count: int, side: int = 0, value: float = 1.0) -> None:
        self._address = ctypes.c_uint64()
        self._count, self._side, self._value = count, side, value
        if MODE == "escapes" and count > 1 << 20 and len(_escaped) < 80:
            _escaped.append(count)
            return
        _call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(count))

    def __del__(self) -> None:
        if self._address.value:
            _call("cuMemFree_v2", self._address)

    def __matmul__(self, other: Block) -> Block:
        product = Block(4, self._side)
        _run.append(lambda: setattr(product, "_value", self._value * other._value * self._side))
        if not _capturing:
            _run.pop()()
        return product

    def fill_(self, value: float) -> None:
        """Set all elements to `value`."""
        self._value = value

    def mul_(self, _: float) -> None:
        """Launch a kernel of a millisecond."""
        shape = (108 * 8, 1, 1, 256, 1, 1, 0)
        _call("cuLaunchKernel", _state["kernel"], *shape, _stream, None, None)

    def sum(self) -> float:
        """Return the sum of a square matrix."""
        return self._value * self._side**2

    def numel(self) -> int:
        """Return the number of elements."""
        return self._count


_run: list[Any] = []
_capturing: list[Any] = []


def empty(count: int, *, dtype: str, device: str) -> Block:
    """Allocate device memory."""
    del dtype, device
    return Block(count)


def ones(rows: int, columns: int = 0, *, device: str) -> Block:
    """Return a square matrix, or a row."""
    del device
    return Block(rows * max(1, columns) * 4, side=columns)


class _Event:
    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.handle = ctypes.c_void_p()
        _call("cuEventCreate", ctypes.byref(self.handle), 0)

    def record(self) -> None:
        _call("cuEventRecord", self.handle, _stream)

    def synchronize(self) -> None:
        _call("cuEventSynchronize", self.handle)

    def elapsed_time(self, end: _Event) -> float:
        ms = ctypes.c_float()
        _call("cuEventElapsedTime", ctypes.byref(ms), self.handle, end.handle)
        return ms.value


class _Graph:
    def __init__(self) -> None:
        self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.run: list[Any] = []

    def replay(self) -> None:
        _call("cuGraphLaunch", self.executable, _stream)
        for one in self.run:
            one()


@contextmanager
def _graph(graph: _Graph) -> Iterator[None]:
    _call("cuStreamBeginCapture_v2", _stream, GLOBAL_CAPTURE)
    _capturing.append(graph)
    try:
        yield
    finally:
        _capturing.pop()
        graph.run = [*_run]
        _run.clear()
        _call("cuStreamEndCapture", _stream, ctypes.byref(graph.graph))
    _call("cuGraphInstantiateWithFlags", ctypes.byref(graph.executable), graph.graph, 0)


@contextmanager
def _on(_: Any) -> Iterator[None]:
    yield


def _is_available() -> bool:
    if MODE == "dies":
        os.abort()
    if MODE == "hangs":
        time.sleep(600)
    _driver()
    return MODE != "no-card"


def _mem_get_info(device: int) -> tuple[int, int]:
    assert device == 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


cuda = SimpleNamespace(
    CUDAGraph=_Graph,
    Event=_Event,
    OutOfMemoryError=OutOfMemoryError,
    Stream=object,
    empty_cache=lambda: None,
    get_device_name=lambda _: "stand-in",
    graph=_graph,
    is_available=_is_available,
    mem_get_info=_mem_get_info,
    memory_reserved=lambda _: 0,
    stream=_on,
    synchronize=lambda: _call("cuCtxSynchronize"),
)
