"""Probes fail for a stuck agent, and wrong reports do not stop a healthy one."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from agent_node import a_driver_device
from builders import a_device
from set_clock import SetClock
from vgpu_api.config import ClusterConfig
from vgpu_api.errors import BadInput
from vgpu_api.names import AGENT_UNREADY_S
from vgpu_api.v1alpha1 import GPUDeviceSpec
from vgpu_nodeagent.reporting.device_status import configured, without_effect
from vgpu_nodeagent.reporting.liveness import BEAT_S, STUCK_S, UNREADY_S, Liveness, ProbeServer
from vgpu_nodeagent.state.saved_config import usable_config

MANIFESTS = Path(__file__).parents[3] / "manifests" / "base"


def probe(port: int, path: str, *, timeout: float = 5) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


def test_a_loop_that_does_not_turn_is_dead_and_one_that_does_is_alive() -> None:
    clock = SetClock()
    liveness = Liveness(clock=clock)
    clock.time = STUCK_S
    assert liveness.answer("/healthz") == (200, "ok")
    clock.time = STUCK_S + 1
    assert liveness.answer("/healthz") == (503, "the event loop has not turned for 21 s")


def test_a_loop_that_does_not_turn_is_unready_before_it_is_dead() -> None:
    clock = SetClock()
    liveness = Liveness(clock=clock)
    clock.time = UNREADY_S
    assert liveness.answer("/readyz") == (200, "ok")
    clock.time = UNREADY_S + 1
    assert liveness.answer("/readyz") == (503, "the event loop has not turned for 13 s")
    assert liveness.answer("/healthz") == (200, "ok")


def test_a_hanging_agent_is_noticed_within_forty_seconds() -> None:
    """The probe fails three times; a stopped process does not answer it for `timeoutSeconds`."""
    (agent,) = (
        each
        for each in yaml.safe_load_all((MANIFESTS / "nodeagent" / "daemonset.yaml").read_text())
    )
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    probe = container["readinessProbe"]
    period, timeout, failures = probe["periodSeconds"], probe["timeoutSeconds"], 3
    assert "failureThreshold" not in probe  # the default is three
    stuck = UNREADY_S + BEAT_S + failures * period
    stopped = period + failures * max(period, timeout)
    kubelet_s, engine_s = 1, 1
    assert max(stuck, stopped) + kubelet_s + AGENT_UNREADY_S + engine_s < 40


async def test_the_turning_loop_is_noted() -> None:
    clock = SetClock()
    liveness = Liveness(clock=clock)
    beating = asyncio.ensure_future(liveness.run())
    clock.time = 2 * STUCK_S
    assert liveness.fault(STUCK_S)
    await asyncio.sleep(0)
    assert not liveness.fault(STUCK_S)
    beating.cancel()


def test_probes_are_answered_on_ipv6_and_ipv4() -> None:
    server = ProbeServer(Liveness(), 0)
    try:
        for host in ("[::1]", "127.0.0.1"):
            with urllib.request.urlopen(f"http://{host}:{server.port}/healthz", timeout=5) as got:
                assert got.status == 200
    finally:
        server.close()


def test_an_agent_that_is_not_ready_says_why_and_is_alive_all_the_same() -> None:
    class Unregistered:
        def unready(self) -> str:
            return "not registered with the kubelet yet"

    liveness = Liveness(Unregistered())
    server = ProbeServer(liveness, 0)
    try:
        assert probe(server.port, "/healthz") == (200, "ok")
        assert probe(server.port, "/readyz") == (503, "not registered with the kubelet yet")
        assert probe(server.port, "/metrics")[0] == 404
    finally:
        server.close()


STUCK = """
import asyncio, sys, time
from vgpu_nodeagent.reporting import liveness
liveness.STUCK_S = liveness.BEAT_S = 0.2

async def main():
    alive = liveness.Liveness()
    server = liveness.ProbeServer(alive, 0)
    beating = asyncio.ensure_future(alive.run())
    await asyncio.sleep(0.01)
    print(server.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    time.sleep(60)  # in the loop

asyncio.run(main())
"""


def test_a_stuck_loop_answers_that_it_is_and_a_stopped_process_answers_nothing() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", STUCK], text=True, **pipes) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            port = int(process.stdout.readline())
            process.stdin.write("\n")
            process.stdin.flush()
            deadline = time.monotonic() + 10
            while probe(port, "/healthz")[0] != 503:
                assert time.monotonic() < deadline
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            with pytest.raises(OSError, match="timed out"):
                probe(port, "/healthz", timeout=0.5)
        finally:
            process.kill()


GOOD, BAD = "nvidia: {deviceSplitCount: 7}\n", "nvidia: {deviceSplitCount: 0}\n"


def test_a_mistake_leaves_the_last_good_configuration_in_force(tmp_path: Path) -> None:
    given, state = tmp_path / "config.yaml", tmp_path / "state"
    given.write_text(GOOD)
    assert usable_config(given, state)[0].nvidia.device_split_count == 7
    given.write_text(BAD)
    config, fault = usable_config(given, state)
    assert config.nvidia.device_split_count == 7
    assert "nvidia.deviceSplitCount: Invalid value: 0" in fault
    given.unlink()
    config, fault = usable_config(given, state)
    assert (config.nvidia.device_split_count, "config.yaml" in fault) == (7, True)
    given.write_text("nvidia: {deviceSplitCount: 3}\n")
    config, fault = usable_config(given, state)
    assert (config.nvidia.device_split_count, fault) == (3, "")
    given.write_text(BAD)
    assert usable_config(given, state)[0].nvidia.device_split_count == 3


def test_a_node_that_never_had_a_good_configuration_says_so_and_ends(tmp_path: Path) -> None:
    given = tmp_path / "config.yaml"
    given.write_text(BAD)
    with pytest.raises(BadInput):
        usable_config(given, tmp_path / "state")
    assert usable_config(None, tmp_path / "state") == (ClusterConfig(), "")
    assert not (tmp_path / "state").exists()


def test_a_copy_is_whole_or_not_there_and_a_full_disk_ends_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given, state = tmp_path / "config.yaml", tmp_path / "state"
    given.write_text(GOOD)
    usable_config(given, state)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    given.write_text("nvidia: {deviceSplitCount: 3}\n")
    config, fault = usable_config(given, state)
    assert (config.nvidia.device_split_count, fault) == (3, "")
    assert f"cannot keep a copy of {given}: [Errno 28] No space left on device" in caplog.text
    given.write_text(BAD)
    assert usable_config(given, state)[0].nvidia.device_split_count == 7


def test_devices_say_that_their_agent_does_not_use_what_it_was_given() -> None:
    device = a_device()
    assert configured(device, "") == []
    (found,) = configured(device, "nvidia.deviceSplitCount: Invalid value: 0")
    assert (found.status, found.reason) == ("False", "ConfigurationInvalid")
    assert "the last good configuration is in force: nvidia.deviceSplitCount" in found.message


def test_a_share_of_compute_by_policy_means_nothing_in_mig_mode_and_mig_nothing_outside() -> None:
    spec = GPUDeviceSpec(node_name="n1", core_policy="Force", mode="MIG")
    divided = dataclasses.replace(a_driver_device(), mig_enabled=True)
    assert without_effect(spec, divided).startswith("spec.corePolicy: ")
    assert without_effect(spec, a_driver_device()).startswith("spec.mode: ")


def test_a_device_without_a_reading_is_not_judged() -> None:
    spec = GPUDeviceSpec(node_name="n1", mode="MIG", memory="1Gi")
    assert without_effect(spec, a_driver_device(memory_mib=0)) == ""
