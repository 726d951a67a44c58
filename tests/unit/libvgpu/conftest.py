"""A simulated machine for each test, and a Python of its own on it.

The loader finds the driver, and limits are read once per process, so everything runs in
subprocesses.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NATIVE = Path(__file__).resolve().parents[3] / "libvgpu"
BUILD = NATIVE / "build"
UUIDS = (
    "GPU-6f3c1c2e-0000-4000-8000-000000000000",
    "GPU-6f3c1c2e-0000-4000-8000-000000000001",
)
MACHINE = f"""
driver=570.86.15
cuda=12.8
card uuid={UUIDS[0]} model="NVIDIA A100-SXM4-80GB" memory_mib=81920 numa=0 \
bus=0000:07:00.0 cc=8.0 sms=108 mig=off
card uuid={UUIDS[1]} model="NVIDIA T4" memory_mib=16384 numa=1 bus=0000:0b:00.0 cc=7.5 sms=40
link 0 1 nvlinks=2 level=SYS
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A machine file in a folder of its own, and the environment that leads to it."""

    folder: Path
    machine: Path

    @property
    def probe_path(self) -> Path:
        """Return the driver-API client."""
        return BUILD / "vgpu-probe"

    @property
    def library_path(self) -> Path:
        """Return the library under test."""
        return BUILD / "libvgpu.so"

    def environment(self, *, limited: bool, extra: dict[str, str] | None = None) -> dict[str, str]:
        """Return a program's environment on this machine; `limited` makes it a container's."""
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("VGPU_", "CUDA_", "NVIDIA_", "LD_"))
        }
        env["VGPU_FAKE_MACHINE"] = str(self.machine)
        env["LD_LIBRARY_PATH"] = str(BUILD / "fake")
        if limited:
            env["LD_PRELOAD"] = str(self.library_path)
            env["VGPU_LIMIT_PAGE"] = str(self.folder / "limits")
            env["VGPU_USAGE_REGION"] = str(self.folder / "region")
        return env | (extra or {})

    def python(
        self, program: str, *, limited: bool = False, extra: dict[str, str] | None = None
    ) -> Any:
        """Run `program` in a separate Python; return as JSON what it assigns to `answer`."""
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import json\n{program}\nprint(json.dumps(answer))",
            ],
            env=self.environment(limited=limited, extra=extra),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def probe(self, script: str, *, limited: bool = True) -> list[dict[str, Any]]:
        """Run vgpu-probe; one object per command."""
        done = subprocess.run(
            [str(self.probe_path), "run", script],
            env=self.environment(limited=limited),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def control(self, *words: str) -> None:
        """Run vgpu-fake-ctl on this machine."""
        subprocess.run([str(BUILD / "vgpu-fake-ctl"), str(self.machine), *words], check=True)

    def grant(self, limits: dict[str, int], *, state: int = 1) -> None:
        """Write a limit page (bytes by UUID) as the agent would."""
        page = bytearray(16384)
        header = struct.pack(
            "<QIIIIQII64s",
            int.from_bytes(b"VGPUPAGE", "little"),
            1,
            16384,
            2,
            state,
            1,
            len(limits),
            0,
            b"slot-1-test",
        )
        page[: len(header)] = header
        for number, (uuid, limit) in enumerate(limits.items()):
            struct.pack_into("<64sQ", page, 256 + 192 * number, uuid.encode(), limit)
        (self.folder / "limits").write_bytes(page)
        region = self.folder / "region"
        region.touch()
        os.truncate(region, 2113536)


def tool(name: str) -> ModuleType:
    """Return a program of libvgpu/tools as a module, to call its functions."""
    path = NATIVE / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"libvgpu_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def report() -> ModuleType:
    """Return the module that makes the bench report."""
    return tool("bench")


@pytest.fixture(scope="session")
def assumptions(report: ModuleType) -> ModuleType:
    """Return the module that measures shares on differing devices; it uses the report's."""
    sys.modules.setdefault("bench", report)
    return tool("assumptions")


@pytest.fixture(scope="session")
def gate() -> ModuleType:
    """Return the module that compares the table of symbols with NVIDIA's headers."""
    return tool("coverage")


@pytest.fixture(scope="session")
def userland() -> ModuleType:
    """Return the module that runs CUDA programs."""
    return tool("userland")


@pytest.fixture(scope="session")
def replay() -> ModuleType:
    """Return the module that replays the look-ups of runtime libraries."""
    return tool("lookups")


@pytest.fixture(scope="session")
def native() -> Path:
    """The built libraries; several test processes build them once."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", str(NATIVE), "all"], check=True)
    return BUILD


@pytest.fixture
def stage(native: Path, tmp_path: Path) -> Stage:
    """Two devices of different kinds, joined by two NVLinks."""
    machine = tmp_path / "machine"
    machine.write_text(MACHINE)
    return Stage(folder=tmp_path, machine=machine)


@dataclass(frozen=True, slots=True)
class Check:
    """The check on GPUs on a simulated machine, in virtual time.

    Attributes:
        stage: The machine.
        monkeypatch: Sets the environment of every program that the check starts.
        scale: All windows are so many times as long.
    """

    stage: Stage
    monkeypatch: pytest.MonkeyPatch
    scale: float = 1.0

    def tools(self, **replaced: Any) -> Any:
        """Return the programs as the check takes them, some of them replaced."""
        tests = BUILD / "tests"
        found = {
            "spin": tests / "vgpu-spin",
            "measure": tests / "vgpu-measure",
            "library": tests / "virtual" / "libvgpu.so",
            "scale": self.scale,
        }
        return self.module("gpu_tools").Tools(**(found | replaced))

    def module(self, name: str) -> Any:
        """Return a module of the check."""
        return importlib.import_module(name)

    def deadline(self, seconds: float = 100) -> Any:
        """Return a deadline of the check."""
        return self.module("gpu_case").Deadline(seconds)

    def machine(self, *settings: str) -> None:
        """Write the machine's file again; the last of two settings with the same name counts."""
        self.stage.machine.write_text("\n".join([MACHINE, *settings]) + "\n")

    def driver(self, folder: str, **env: str) -> None:
        """Put another libcuda.so.1 before the simulated one."""
        path = f"{BUILD / 'tests' / folder}:{BUILD / 'fake'}"
        self.monkeypatch.setenv("LD_LIBRARY_PATH", path)
        for name, value in env.items():
            self.monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def check_programs(native: Path) -> Path:
    """Build the programs that tests of gpu-check need besides the libraries."""
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", str(NATIVE), "gpu-check-tests"], check=True)
    return BUILD


@pytest.fixture
def check(stage: Stage, check_programs: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return the check on a separate machine, whose contexts take memory as real ones do."""
    path = os.environ["PATH"]
    for name in os.environ:
        monkeypatch.delenv(name)
    env = stage.environment(limited=False) | {"VGPU_VIRTUAL_TIME": str(stage.folder / "time")}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", path)
    monkeypatch.syspath_prepend(NATIVE / "tools")
    found = Check(stage, monkeypatch)
    found.machine("context_mib=300")
    stage.control("status")  # the first to use the machine is its host
    return found
