"""Replays what NVIDIA's runtime libraries look up in the driver, under the library.

    lookups.py [--cache FOLDER]

Each libcudart of the pinned packages (coverage.py) is loaded on the simulated driver and asked for
the number of devices. It looks up the driver's functions by cuGetProcAddress and then ends, as the
driver's private tables are not imitated. Every look-up is made once more under libvgpu.so: its
answer must have a row in src/symbols*.def, and be the library's where the row is interposed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import coverage

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
MACHINE = "cuda=13.5\ncard uuid=GPU-00000000-0000-4000-8000-000000000001 memory_mib=16384\n"
SECONDS = 60
_COUNT = """
import ctypes, sys
runtime, count = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
print(runtime.cudaGetDeviceCount(ctypes.byref(count)))
"""
#: Answers with the file and the symbol that each look-up leads to; null for those that fail.
_RESOLVE = """
import ctypes, json, os, sys
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]
dladdr = ctypes.CDLL(None).dladdr
dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
cuda, found = ctypes.CDLL("libcuda.so.1"), []
for name, version, flags in json.load(sys.stdin):
    out, info = ctypes.c_void_p(), Info()
    failed = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(out), version, ctypes.c_uint64(flags), None)
    known = not failed and out.value and dladdr(out, ctypes.byref(info)) and info.symbol
    found.append([os.path.basename(info.file.decode()), info.symbol.decode()] if known else None)
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class LookUp:
    """One call of cuGetProcAddress."""

    name: str
    version: int
    flags: int


def runtimes(cache: Path, folder: Path) -> list[tuple[str, Path]]:
    """Unpack the runtime library of every downloaded package: the package and the file."""
    found = []
    for package in coverage.PACKAGES:
        for wheel in coverage.wheels(cache, package):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    if "libcudart.so" in member:
                        into = folder / package.replace("==", "-")
                        found.append((package, Path(archive.extract(member, into))))
    return found


def run(folder: Path, program: str, *words: str, extra: Mapping[str, str], text: str = "") -> str:
    """Return the output of `program` on the machine in `folder`.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "NVIDIA_", "LD_"))}
    leads = {"VGPU_FAKE_MACHINE": str(folder / "machine"), "LD_LIBRARY_PATH": str(BUILD / "fake")}
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env=own | leads | dict(extra),
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=SECONDS,
    ).stdout


def asked(folder: Path, runtime: Path) -> tuple[int, list[LookUp]]:
    """Return the runtime's answer, and its look-ups, each once and in order."""
    log = folder / "lookups"
    log.unlink(missing_ok=True)
    answer = run(folder, _COUNT, str(runtime), extra={"VGPU_FAKE_LOOKUPS": str(log)})
    lines = log.read_text().splitlines() if log.exists() else []
    calls = [LookUp(name, int(v), int(f)) for name, v, f in (line.rsplit(" ", 2) for line in lines)]
    return int(answer), list(dict.fromkeys(calls))


def resolved(folder: Path, calls: Iterable[LookUp]) -> list[tuple[str, str] | None]:
    """Return the file and symbol that each look-up finds under the library, else None."""
    extra = {
        "LD_PRELOAD": str(BUILD / "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_LIMIT": "1g",
        "VGPU_USAGE_REGION": str(folder / "region"),
    }
    text = json.dumps([(call.name, call.version, call.flags) for call in calls])
    found = json.loads(run(folder, _RESOLVE, extra=extra, text=text))
    return [None if pair is None else (pair[0], pair[1]) for pair in found]


def judged(
    calls: Iterable[LookUp],
    answers: Iterable[tuple[str, str] | None],
    rows: Iterable[coverage.Row],
) -> dict[str, Any]:
    """Return the counts by class, the names that no version of the driver has, and the faults."""
    by_symbol = {row.symbol: row for row in rows}
    classes: Counter[str] = Counter()
    not_found, wrong = [], []
    for call, answer in zip(calls, answers, strict=True):
        if answer is None:
            not_found.append(call.name)
            continue
        file, symbol = answer
        row = by_symbol.get(symbol)
        if row is None:
            wrong.append(f"{call.name} {call.version} leads to {symbol}, which has no row")
            continue
        classes[row.symbol_class] += 1
        ours = file == "libvgpu.so"
        if ours != (row.kind != "PLAIN"):
            wrong.append(f"{call.name} {call.version} is {row.symbol_class} and leads to {file}")
    return {
        "classes": dict(sorted(classes.items())),
        "not_found": sorted(set(not_found)),
        "wrong": wrong,
    }


def report(cache: Path) -> list[dict[str, Any]]:
    """One row a runtime library.

    Raises:
        subprocess.CalledProcessError: The package index does not give one of them.
    """
    coverage.fetch(cache)
    rows = coverage.rows()
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "machine").write_text(MACHINE)
        for package, runtime in runtimes(cache, folder):
            answer, calls = asked(folder, runtime)
            verdict = judged(calls, resolved(folder, calls), rows)
            if not calls:
                verdict["wrong"].append("it looked nothing up")
            row = {"program": package, "answer": answer, "looked_up": len(calls)}
            found.append(row | verdict)
    return found


def main() -> int:
    """Print the rows; 1 when one of them is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=coverage.default_cache())
    found = report(parser.parse_args().cache)
    for row in found:
        counts = " ".join(f"{name} {count}" for name, count in row["classes"].items())
        print(f"{row['program']:30} {row['looked_up']:4} look-ups: {counts}", end="")
        print(f"; not found: {len(row['not_found'])}")
        for sentence in row["wrong"]:
            print(f"lookups: {row['program']}: {sentence}", file=sys.stderr)
    return int(any(row["wrong"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
