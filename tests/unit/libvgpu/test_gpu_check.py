"""The check for real drivers, run on the simulated one and where there is none."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Stage

TOOL = Path(__file__).resolve().parents[3] / "libvgpu" / "tools" / "gpu_check.py"


CONTEXT = 300 << 20


def in_first_namespace() -> bool:
    """Whether a process finds its own PID in NVML; elsewhere the agent would hand it over."""
    return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"


def run(stage: Stage, out: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, out, "--only", "memory"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_on_a_driver_it_finds_the_limit_kept_and_tells_what_is_not_counted(
    stage: Stage, tmp_path: Path
) -> None:
    stage.machine.write_text("context_mib=300\n" + stage.machine.read_text())
    out = tmp_path / "bench" / "gpu.json"
    done = run(stage, out, stage.environment(limited=False))
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(out.read_text())
    assert findings["simulated"]
    assert findings["failures"] == []
    assert [check["limit_bytes"] for check in findings["checks"]] == [20 << 30, 40 << 30]
    for check in findings["checks"]:
        assert check["wrong"] == []
        assert len(check["results_beyond_limit"]) == 7
        counted = check["context_bytes_counted"]
        assert counted == (CONTEXT if in_first_namespace() else 0)
        assert check["filled_bytes"] == check["limit_bytes"] - counted
        assert check["uncounted_bytes_of_a_process"] == CONTEXT - counted


def test_without_a_driver_it_says_so_and_fails(stage: Stage, tmp_path: Path) -> None:
    env = stage.environment(limited=False)
    del env["VGPU_FAKE_MACHINE"]
    done = run(stage, tmp_path / "gpu.json", env)
    assert done.returncode == 1
    assert "nothing was checked" in done.stdout
    assert not (tmp_path / "gpu.json").exists()


def test_a_driver_that_hangs_is_a_finding_and_not_a_check_that_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TOOL.parent)
    case, memory = importlib.import_module("gpu_case"), importlib.import_module("gpu_memory")
    check = importlib.import_module("gpu_check")
    hangs = tmp_path / "vgpu-probe"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(memory, "PROBE_S", 0.2)
    probe = memory.Probe(hangs, tmp_path / "libvgpu.so", case.Deadline(60))
    found = check.check_memory(probe, 80 << 30)
    assert [one["wrong"] for one in found] == [["vgpu-probe: not done after 0 s"]] * 2
    gone = memory.Probe(hangs, tmp_path / "libvgpu.so", case.Deadline(0))
    assert check.check_memory(gone, 80 << 30)[0]["wrong"] == ["no time left for it"]
