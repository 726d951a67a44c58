"""Calls CUDA's runtime library under a limit by ctypes, in a process that gpu_cudart.py starts.

    cudart_case.py FILE LIMIT_BYTES

It prints one JSON object with the answer to each call.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

GRAIN = 4 << 20
#: An empty kernel; cudaLibraryLoadData of CUDA 12.8 and later takes the text.
PTX = b".version 6.3\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\n ret;\n}\n"


class Grid(ctypes.Structure):
    """The dim3 of the runtime."""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


def main() -> None:
    """Allocate within the limit and beyond it with each allocator.

    Launch a kernel if the runtime can.
    """
    runtime, limit = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
    found: dict[str, Any] = {}
    free, total, address = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
    found["init"] = runtime.cudaFree(None)
    found["info"] = runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    found["total"] = total.value
    kinds: dict[str, Any] = {
        "cudaMalloc": lambda size: runtime.cudaMalloc(ctypes.byref(address), size),
        "cudaMallocAsync": lambda size: runtime.cudaMallocAsync(
            ctypes.byref(address), size, ctypes.c_void_p()
        ),
        "cudaMallocManaged": lambda size: runtime.cudaMallocManaged(
            ctypes.byref(address), size, ctypes.c_uint(1)
        ),
    }
    for name, allocate in kinds.items():
        if hasattr(runtime, name):
            too_much = allocate(ctypes.c_size_t(limit + GRAIN))
            runtime.cudaGetLastError()
            fits = allocate(ctypes.c_size_t(limit // 4))
            runtime.cudaFree(address)
            found[name] = [too_much, fits]
    found["launch"] = launch(runtime) if hasattr(runtime, "cudaLibraryLoadData") else None
    found["end"] = runtime.cudaDeviceSynchronize()
    found["library"] = "libvgpu.so" in Path("/proc/self/maps").read_text()
    print(json.dumps(found))


def launch(runtime: Any) -> int:
    """Load and launch an empty kernel; return the first error, or 0."""
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    nothing = ctypes.c_void_p()
    answer: int = runtime.cudaLibraryLoadData(
        ctypes.byref(module), PTX, nothing, nothing, 0, nothing, nothing, 0
    )
    if not answer:
        answer = runtime.cudaLibraryGetKernel(ctypes.byref(kernel), module, b"nothing")
    if not answer:
        one = Grid(1, 1, 1)
        answer = runtime.cudaLaunchKernel(kernel, one, one, nothing, ctypes.c_size_t(0), nothing)
    return answer


main()
