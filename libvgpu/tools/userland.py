"""Runs programs of the CUDA world on the simulated driver under the library; a row for each.

    userland.py OUT PYTHON [WITH_PYTORCH]

PYTHON has userland/requirements.in installed, WITH_PYTORCH userland/torch.in.

A row says what ran, what it saw, what it should have seen, and which of the driver's functions it
asked for that are not simulated. Fails when a program sees anything but its slice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import coverage
import lookups

BUILD = Path(__file__).resolve().parents[1] / "build"
CASE = BUILD.parent / "userland" / "case.py"
SECONDS = 120
MACHINE = """\
cuda=13.0
mps=1
draws=1
card uuid=GPU-00000000-0000-4000-8000-000000000001 memory_mib=16384 model="NVIDIA A100-SXM4-80GB"
card uuid=GPU-00000000-0000-4000-8000-000000000002 memory_mib=16384
"""
SLICE = {"CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_SM_LIMIT": "50"}
_CHOICES = ("CUDA_", "NVIDIA_", "VGPU_", "LD_")
_NEIGHBOUR = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
failed = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
failed = failed or cuda.cuCtxSetCurrent(context)
failed = failed or cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4 << 30))
print(failed, flush=True)
sys.stdin.read()
"""
#: What a program must see; a figure that is not named here is a note.
WANTED: dict[str, dict[str, Any]] = {
    "nvidia-ml-py": {"total_mib": 1024, "used_mib": 0, "processes": 0, "bar1_used_mib": 0},
    "cuda-bindings": {"errors": [], "free_mib": 1024, "total_mib": 1024, "held_mib": 1024},
    "cuda-core": {"buffer_mib": 512, "launched": "add", "refused": "CUDA_ERROR_OUT_OF_MEMORY"},
    "numba-cuda": {"total_mib": 1024, "launched": "add", "copied_back": True},
    "gpustat": {"total_mib": 1024, "used_mib": 0, "processes": 0},
    "nvitop": {"total_mib": 1024, "used_mib": 0, "processes": 0, "screen": True},
    "libcudart": {"loads": True},
    "CuPy": {"driver": 13000},
    "PyTorch": {
        "cards_by_nvml": 2,
        "cards": 2,
        "total_mib": 1024,
        "used_mib": 0,
        "processes": ["no processes are running"],
    },
}


_NO_RUNTIME = (
    "stands on libcudart, whose first call fails (error 500): cuGetExportTable gives it no private "
    "table, by which it checks that the driver is NVIDIA's; what it looks up before is replayed "
)
#: Why a program that runs comes no further than its figure `answer`.
STOPS = {
    "CuPy": f"{_NO_RUNTIME}below",
    "PyTorch": f"{_NO_RUNTIME}below; make gpu-check runs the rest on a real driver",
}
#: What cannot be run here, and what runs it instead.
ELSEWHERE = {
    "nvidia-smi": "comes with NVIDIA's driver alone; test_nvidia_smi.py makes its queries of NVML",
    "DCGM": "its library comes from NVIDIA's own repositories alone, not from PyPI or Debian",
}


@contextmanager
def stage() -> Iterator[dict[str, str]]:
    """The environment of a machine with a neighbour on its first card."""
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine"
        machine.write_text(MACHINE)
        # Settings of this machine's user for real cards must not affect the simulated ones.
        own = {key: value for key, value in os.environ.items() if not key.startswith(_CHOICES)}
        environment = own | {
            "VGPU_FAKE_MACHINE": str(machine),
            "VGPU_FAKE_MISSING": str(Path(folder) / "missing"),
            "LD_LIBRARY_PATH": str(BUILD / "fake"),
        }
        neighbour = subprocess.Popen(
            [sys.executable, "-c", _NEIGHBOUR],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            if neighbour.stdout is None or neighbour.stdout.readline().strip() != "0":
                raise RuntimeError("the neighbour did not get its memory")
            region = {"VGPU_USAGE_REGION": str(Path(folder) / "region")}
            yield environment | SLICE | region | {"LD_PRELOAD": str(BUILD / "libvgpu.so")}
        finally:
            neighbour.kill()
            neighbour.communicate()


def run(name: str, python: str) -> dict[str, Any]:
    """One program's row."""
    row: dict[str, Any] = {"program": name, "ran": False, "saw": {}, "wrong": []}
    with stage() as environment:
        try:
            done = subprocess.run(
                [python, CASE, name],
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return {**row, "wrong": [f"did not end within {SECONDS} s"]}
        missing = Path(environment["VGPU_FAKE_MISSING"])
        row["not_simulated"] = sorted(set(missing.read_text().split())) if missing.exists() else []
    if done.returncode:
        return {**row, "wrong": [(done.stderr.strip().splitlines() or ["no word"])[-1]]}
    row |= {"ran": True, "saw": json.loads(done.stdout.splitlines()[-1])}
    row["wrong"] = differences(row["saw"], WANTED[name])
    if name in STOPS:
        row["why"] = STOPS[name]
    return row


def differences(saw: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A sentence for each thing that was not seen as it should have been."""
    return [
        f"{key} is {saw.get(key)!r}, wanted {value!r}"
        for key, value in wanted.items()
        if saw.get(key) != value
    ]


def pytorch(python: list[str]) -> dict[str, Any]:
    """PyTorch's row, by the Python that has it, if there is one."""
    if not python:
        why = "not installed: make userland PYTORCH=1 installs and runs it"
        return {"program": "PyTorch", "ran": False, "why": why}
    return run("PyTorch", python[0])


def replayed(found: dict[str, Any]) -> dict[str, Any]:
    """The row of a runtime library whose look-ups were replayed (lookups.py)."""
    saw = {key: found[key] for key in ("answer", "looked_up", "classes", "not_found")}
    return {"program": found["program"], "ran": True, "saw": saw, "wrong": found["wrong"]}


def main() -> int:
    """Run all, print and write the rows; 1 when one of them is wrong."""
    out, python = Path(sys.argv[1]), sys.argv[2]
    rows = [run(name, python) for name in WANTED if name != "PyTorch"]
    rows.append(pytorch(sys.argv[3:]))
    rows += [{"program": name, "ran": False, "why": why} for name, why in ELSEWHERE.items()]
    rows += [replayed(found) for found in lookups.report(coverage.default_cache())]
    text = json.dumps({"rows": rows}, indent=1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n")
    print(text)
    return int(any(row.get("wrong") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
