"""A small `make bench-cluster`: its report is complete, and it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vgpu_local.programs import ROOT

pytestmark = pytest.mark.timeout(240)


@contextmanager
def a_run(out: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    run = subprocess.Popen(
        [sys.executable, "-m", "perf.cluster_bench", "--out", str(out), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield run
    finally:
        run.terminate()
        run.communicate()


def test_it_reports_both_loads_and_keeps_its_promises(tmp_path: Path) -> None:
    out = tmp_path / "cluster.json"
    with a_run(
        out,
        *("--sizes", "3", "--pods", "12", "--allocated", "30", "--claims", "2"),
        *("--failover", "--cold-start", "--profile"),
    ) as run:
        said, _ = run.communicate(timeout=200)
    assert run.returncode == 0, said
    found = json.loads(out.read_text())["sizes"]["3"]
    assert (found["plain"]["bound"], found["ours"]["bound"]) == (12, 12)
    assert found["ours"]["claims"]["allocated"] == 20
    assert found["ours"]["failover"]["bound"] == 12
    cold = found["ours"]["cold_start"]
    assert 0 < cold["leads_after_lease_s"] < cold["leads_after_s"]
    assert set(cold["peak_mib"]) == {"operator-0", "operator-1"}
    assert set(found["ours"]["promises"].values()) == {0}
    assert found["ours"]["requests_per_pod"]["POST pods"] == 1
    assert found["ours"]["requests_per_pod"]["PATCH vgpuclaims/status"] >= 1
    assert "APPLY vgpuclaims/status" not in found["ours"]["requests_per_pod"]  # the agent's
    assert {"etcd", "kube-apiserver", "kube-scheduler", "operator-0", "operator-1"} <= set(
        found["ours"]["cpu_ms_per_pod"]
    )
    for part in ("pods", "claims"):
        for program in ("kube-apiserver", "kube-scheduler"):
            profile = tmp_path / "cluster.3.profiles" / part / f"{program}.00.pprof"
            assert profile.stat().st_size > 0


def test_it_measures_the_same_pods_by_other_modes(tmp_path: Path) -> None:
    out = tmp_path / "cluster.json"
    with a_run(out, "--sizes", "3", "--pods", "12", "--mode", "gate", "claims", "stock") as run:
        said, _ = run.communicate(timeout=200)
    assert run.returncode == 0, said
    sizes = json.loads(out.read_text())["sizes"]["3"]
    for mode, writes in (("gate", "PATCH pods"), ("claims", "PATCH resourceclaims/status")):
        found = sizes[mode]
        assert found["bound"] == 12
        assert set(found["promises"].values()) == {0}
        assert found["requests_per_pod"][writes] >= 1
    stock = sizes["stock"]
    assert stock["bound"] == 12
    assert stock["requests_per_pod"]["POST resourceclaims"] == 1
    assert stock["requests_per_pod"]["PUT resourceclaims/status"] >= 1


def test_nothing_is_left_of_a_run_that_is_terminated(tmp_path: Path) -> None:
    started: dict[int, str] = {}
    with a_run(tmp_path / "cluster.json", "--sizes", "3", "--pods", "200") as run:
        deadline = time.monotonic() + 120
        while not any("perf.cluster_bench.agent" in command for command in started.values()):
            assert run.poll() is None, "it ended before its agent was started"
            assert time.monotonic() < deadline, started
            time.sleep(0.1)
            started |= dict(descendants(run.pid))
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
    left = {pid: each for pid, each in started.items() if each and command_of(pid) == each}
    assert left == {}


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Yield the processes that it started, directly or indirectly, as pid and command line."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:
            continue
        for child in map(int, found):
            yield child, command_of(child)
            yield from descendants(child)


def command_of(pid: int) -> str:
    """Return the process's command line, or an empty string once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""
