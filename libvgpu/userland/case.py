"""Runs one CUDA program under the library and prints what it saw; started by tools/userland.py.

    case.py NAME     prints a single JSON object

The slice is 1 GiB of the first of two cards and half of its compute. A neighbour that the library
does not know about holds 4 GiB of the same card. Modules are imported by name, because the project
itself depends on none of them.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
BIN = Path(sys.executable).parent


def nvml() -> dict[str, Any]:
    """nvidia-ml-py: memory, processes and use of the first card."""
    n = importlib.import_module("pynvml")
    n.nvmlInit()
    card = n.nvmlDeviceGetHandleByIndex(0)
    memory = n.nvmlDeviceGetMemoryInfo(card)
    lists = (
        n.nvmlDeviceGetComputeRunningProcesses,
        n.nvmlDeviceGetGraphicsRunningProcesses,
        n.nvmlDeviceGetMPSComputeRunningProcesses,
    )
    return {
        "cards": n.nvmlDeviceGetCount(),
        "total_mib": memory.total // MIB,
        "used_mib": memory.used // MIB,
        "processes": sum(len(ask(card)) for ask in lists),
        "bar1_used_mib": n.nvmlDeviceGetBAR1MemoryInfo(card).bar1Used // MIB,
    }


def bindings() -> dict[str, Any]:
    """cuda.bindings.driver: fills the slice by pieces of 64 MiB."""
    d = importlib.import_module("cuda.bindings.driver")
    results = [d.cuInit(0)[0]]
    error, context = d.cuDevicePrimaryCtxRetain(0)
    results += [error, d.cuCtxSetCurrent(context)[0]]
    error, free, total = d.cuMemGetInfo()
    results.append(error)
    pieces = 0
    while d.cuMemAlloc(64 * MIB)[0] == d.CUresult.CUDA_SUCCESS:
        pieces += 1
    return {
        "errors": [str(r) for r in results if r != d.CUresult.CUDA_SUCCESS],
        "free_mib": free // MIB,
        "total_mib": total // MIB,
        "held_mib": 64 * pieces,
    }


def core() -> dict[str, Any]:
    """cuda.core: a compiled kernel on a stream, buffers, and one too many."""
    c = importlib.import_module("cuda.core")
    device = c.Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer = device.allocate(512 * MIB, stream=stream)
    options = c.ProgramOptions(arch=f"sm_{device.arch}")
    code = 'extern "C" __global__ void add(int *x) { x[threadIdx.x] += 1; }'
    kernel = c.Program(code, "c++", options).compile("cubin").get_kernel("add")
    c.launch(stream, c.LaunchConfig(grid=1, block=32), kernel, int(buffer.handle))
    stream.sync()
    try:
        device.allocate(600 * MIB, stream=stream)
        refused = ""
    except Exception as error:
        refused = str(error).split(":")[0]
    return {
        "arch": device.arch,
        "buffer_mib": buffer.size // MIB,
        "launched": "add",
        "refused": refused,
    }


def numba() -> dict[str, Any]:
    """numba-cuda: a jitted kernel, arrays there and back, and one array too many."""
    np = importlib.import_module("numpy")
    cuda = importlib.import_module("numba.cuda")

    def add(x: Any) -> None:
        x[cuda.grid(1)] += 1

    memory = cuda.current_context().get_memory_info()
    array = cuda.to_device(np.arange(1024))
    cuda.jit(add)[8, 128](array)
    cuda.synchronize()
    same = int(array.copy_to_host().sum())
    try:
        cuda.device_array(1100 * MIB, dtype=np.uint8)
        refused = ""
    except Exception as error:
        refused = type(error).__name__
    return {
        "free_mib": memory.free // MIB,
        "total_mib": memory.total // MIB,
        "launched": add.__name__,
        "copied_back": same == sum(range(1024)),  # a simulated kernel touches no memory
        "refused": refused,
    }


def gpustat() -> dict[str, Any]:
    """Gpustat --json."""
    text = subprocess.run(
        [BIN / "gpustat", "--json"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    card = json.loads(text)["gpus"][0]
    return {
        "total_mib": card["memory.total"],
        "used_mib": card["memory.used"],
        "processes": len(card["processes"]),
    }


def nvitop() -> dict[str, Any]:
    """Nvitop's own view of the first card, and its screen."""
    n = importlib.import_module("nvitop")
    card = n.Device(0)
    screen = subprocess.run(
        [BIN / "nvitop", "--once"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return {
        "total_mib": card.memory_total() // MIB,
        "used_mib": card.memory_used() // MIB,
        "processes": len(card.processes()),
        "screen": "1024MiB" in screen,
    }


def cudart() -> dict[str, Any]:
    """The runtime library: it asks whether the driver is NVIDIA's, which nothing here imitates."""
    r = importlib.import_module("cuda.bindings.runtime")
    error, version = r.cudaRuntimeGetVersion()
    return {"version": version, "loads": int(error) == 0, "answer": str(r.cudaGetDeviceCount()[0])}


def cupy() -> dict[str, Any]:
    """CuPy: imported, the version of the driver, and the first call that needs a device."""
    c = importlib.import_module("cupy")
    runtime = c.cuda.runtime
    try:
        answer = f"{runtime.getDeviceCount()} devices"
    except runtime.CUDARuntimeError as error:
        answer = str(error).split(":")[0]
    return {"version": c.__version__, "driver": runtime.driverGetVersion(), "answer": answer}


def pytorch() -> dict[str, Any]:
    """PyTorch: imported, its view by NVML, and the first call that needs a device."""
    t = importlib.import_module("torch")
    n = importlib.import_module("pynvml")
    memory = n.nvmlDeviceGetMemoryInfo(t.cuda._get_pynvml_handler(0))
    seen = {
        "version": t.__version__,
        "cards_by_nvml": t.cuda._device_count_nvml(),
        "cards": t.cuda.device_count(),
        "total_mib": memory.total // MIB,
        "used_mib": memory.used // MIB,
        "processes": t.cuda.list_gpu_processes(0).splitlines()[1:],
    }
    try:
        answer = str(t.cuda.mem_get_info(0))
    except RuntimeError as error:
        answer = str(error)
    return {**seen, "answer": answer}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "nvidia-ml-py": nvml,
    "cuda-bindings": bindings,
    "cuda-core": core,
    "numba-cuda": numba,
    "gpustat": gpustat,
    "nvitop": nvitop,
    "libcudart": cudart,
    "CuPy": cupy,
    "PyTorch": pytorch,
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
