"""The agent measures and reports the processes that NVML lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import pynvml
import pytest
from prometheus_client import generate_latest

from agent_node import GPU_0, GPU_1, ObedientDriver
from builders import a_claim
from vgpu_api.config import NvidiaConfig
from vgpu_api.effective import Use
from vgpu_api.v1alpha1 import Condition, GPUDevice, VGPUClaim, VGPUClaimStatus
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver
from vgpu_nodeagent.discovery.health import Health
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.enforcement.watchdog import Account, Stranger, Violation
from vgpu_nodeagent.events import Events, StrangersChanged
from vgpu_nodeagent.reporting.device_status import unclaimed
from vgpu_nodeagent.reporting.exposition import UsageCollector
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.node_devices import NodeDevices
from vgpu_nodeagent.reporting.violations import Violations
from vgpu_nodeagent.state.node_view import NodeView
from vgpu_nodeagent.state.slots import ClaimAllocation

NOT_AVAILABLE = (1 << 64) - 1


@dataclass
class Sample:
    pid: int
    timeStamp: int  # noqa: N815 - NVML's name
    smUtil: int  # noqa: N815


class Nvml:
    """Two devices: NVML's answers for each, and the time stamps since which it was queried."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample] | Exception] = {GPU_0: [], GPU_1: []}
        self.accounts: dict[str, dict[int, int]] = {}
        self.running: dict[str, list[int]] = {}
        self.asked: list[tuple[str, int]] = []

    def utilization(self, uuid: str, since: int) -> list[Sample]:
        self.asked.append((uuid, since))
        answer = self.samples[uuid]
        if isinstance(answer, Exception):
            raise answer
        if not answer:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return answer

    def mode(self, uuid: str) -> int:
        if uuid not in self.accounts:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(pynvml.NVML_FEATURE_ENABLED)

    def stats(self, uuid: str, pid: int) -> Any:
        if pid not in self.accounts[uuid]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return SimpleNamespace(maxMemoryUsage=self.accounts[uuid][pid])


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    fake = Nvml()
    for name, function in {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": (GPU_0, GPU_1).__getitem__,
        "nvmlDeviceGetUUID": str,
        "nvmlDeviceGetProcessUtilization": fake.utilization,
        "nvmlDeviceGetAccountingMode": fake.mode,
        "nvmlDeviceGetAccountingStats": fake.stats,
        "nvmlDeviceGetComputeRunningProcesses": lambda uuid: [
            SimpleNamespace(pid=pid) for pid in fake.running.get(uuid, [])
        ],
    }.items():
        monkeypatch.setattr(pynvml, name, function)
    return fake


@pytest.fixture
def driver() -> Iterator[NvidiaDriver]:
    made = NvidiaDriver()
    yield made
    made.close()


async def test_samples_of_a_process_are_averaged_and_none_is_taken_twice(
    nvml: Nvml, driver: NvidiaDriver
) -> None:
    marks: dict[str, int] = {}
    nvml.samples[GPU_0] = [Sample(1, 100, 40), Sample(1, 200, 60), Sample(2, 150, 10)]
    assert await driver.compute_since(marks) == {GPU_0: {1: 50.0, 2: 10.0}, GPU_1: {}}
    nvml.samples[GPU_0] = [Sample(1, 200, 60), Sample(1, 300, 100)]
    assert await driver.compute_since(marks) == {GPU_0: {1: 100.0}, GPU_1: {}}
    assert nvml.asked == [(GPU_0, 0), (GPU_1, 0), (GPU_0, 200), (GPU_1, 0)]


async def test_a_device_that_cannot_tell_who_computes_is_left_out(
    nvml: Nvml, driver: NvidiaDriver
) -> None:
    nvml.samples[GPU_1] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert await driver.compute_since({}) == {GPU_0: {}}


async def test_peaks_come_from_the_accounts_of_running_processes(
    nvml: Nvml, driver: NvidiaDriver
) -> None:
    nvml.accounts = {GPU_1: {1: 5 << 30, 2: NOT_AVAILABLE, 4: 7}}
    nvml.running = {GPU_0: [9], GPU_1: [1, 2, 3]}
    assert await driver.process_peaks() == {GPU_1: {1: 5 << 30}}


class Said:
    """A recorder of conditions and events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.obedient: list[str] = []

    def obeys(self, claim: VGPUClaim) -> None:
        self.obedient.append(claim.metadata.name)

    def warning(self, pod: Any, reason: str, message: str) -> None:
        self.events.append((pod.metadata.name, reason, message))

    def device_warning(self, device: GPUDevice, reason: str, message: str) -> None:
        self.events.append((device.metadata.name, reason, message))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def devices() -> NodeDevices:
    return NodeDevices(Inventory(ObedientDriver([]), NvidiaConfig()), Health())


@pytest.fixture
def violations(metrics: Metrics, said: Said, devices: NodeDevices, events: Events) -> Violations:
    view = NodeView("n1")
    view.devices.added(a_device())
    return Violations(view, devices, said, metrics, events)  # type: ignore[arg-type]


def a_device(*conditions: dict[str, str]) -> GPUDevice:
    return GPUDevice.model_validate(
        {
            "metadata": {"name": GPU_0.lower(), "uid": "u1"},
            "spec": {"nodeName": "n1"},
            "status": {"uuid": GPU_0, "conditions": list(conditions)},
        }
    )


def shown(metrics: Metrics, name: str) -> list[str]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return [line for line in lines if line.startswith(name)]


def test_each_violation_is_counted_under_its_reason(
    metrics: Metrics, violations: Violations
) -> None:
    claim_allocation = ClaimAllocation("c1", "ns", "one", "a1", "p1", "pod", {GPU_0: Use(1, 0, 1)})
    for violation in Violation:
        violations.violated(claim_allocation, violation, GPU_0, "held too much")
    labels = f'claim="one",device_uuid="{GPU_0}",namespace="ns",node="n1"'
    assert shown(metrics, "vgpu_claim_violations_total") == [
        f'vgpu_claim_violations_total{{{labels},reason="{reason}"}} 1.0'
        for reason in ("MemoryLimitViolated", "ComputeLimitViolated", "LimitPageHidden")
    ]


@pytest.mark.parametrize(("status", "withdrawn"), [("True", ["one"]), ("False", []), (None, [])])
def test_what_an_earlier_agent_said_of_a_claim_that_obeys_is_withdrawn(
    metrics: Metrics,
    said: Said,
    devices: NodeDevices,
    events: Events,
    status: Literal["True", "False"] | None,
    withdrawn: list[str],
) -> None:
    """Only its own report is withdrawn: a claim that was never reported gets none."""
    conditions = []
    if status is not None:
        conditions = [
            Condition(
                type="Violated",
                status=status,
                reason="MemoryLimitViolated",
                last_transition_time="2026-01-01T00:00:00Z",
            )
        ]
    view = NodeView("n1")
    view.claims.added(a_claim("one", uid="c1", status=VGPUClaimStatus(conditions=conditions)))
    violations = Violations(view, devices, said, metrics, events)  # type: ignore[arg-type]
    violations.confirmed(ClaimAllocation("c1", "default", "one", "a1", "p1", "pod", {}))
    violations.confirmed(ClaimAllocation("gone", "default", "two", "a2", "p2", "pod", {}))
    assert said.obedient == withdrawn


def test_a_claim_that_is_gone_loses_its_series(metrics: Metrics, violations: Violations) -> None:
    violations.accounts({("ns", "one", GPU_0): Account(3.0, 5, 42.0)})
    labels = f'{{claim="one",device_uuid="{GPU_0}",namespace="ns",node="n1"}}'
    assert shown(metrics, "vgpu_claim_compute_ratio") == [f"vgpu_claim_compute_ratio{labels} 0.42"]
    assert shown(metrics, "vgpu_claim_memory_excess")[0].endswith(" 3.0")
    violations.accounts({})
    for name in ("compute_ratio", "memory_excess_byte_seconds", "memory_driver_peak_bytes"):
        assert shown(metrics, f"vgpu_claim_{name}") == []


def test_no_name_has_two_meanings_in_one_scrape(metrics: Metrics, violations: Violations) -> None:
    """The registry refuses a name that is taken, but a collector names its own at a scrape."""
    metrics.registry.register(UsageCollector("n1", SimpleNamespace(devices={}), hami=True))
    violations.accounts({("ns", "one", GPU_0): Account(3.0, 5, 42.0)})
    families = [line.split()[2] for line in shown(metrics, "# TYPE ")]
    assert "vgpu_claim_memory_peak_bytes" in families
    assert "vgpu_claim_memory_driver_peak_bytes" in families
    assert sorted(set(families)) == sorted(families)


async def test_each_process_of_no_claim_gets_one_event_and_is_counted(
    metrics: Metrics, violations: Violations, said: Said, devices: NodeDevices, events: Events
) -> None:
    one, two = Stranger(1, "miner", "", 3 << 20), Stranger(2, "xorg", "", 1 << 20)
    violations.strangers({GPU_0: (one,)})
    violations.strangers({GPU_0: (one, two)})
    sentence = f"miner (PID 1, no pod) holds 3 MiB of device {GPU_0} and belongs to no claim"
    assert said.events[0] == (GPU_0.lower(), "UnclaimedProcess", sentence)
    assert [message.split()[0] for _, _, message in said.events] == ["miner", "xorg"]
    assert shown(metrics, "vgpu_device_unclaimed_processes")[0].endswith(" 2.0")
    both = "miner (PID 1, no pod) holds 3 MiB; xorg (PID 2, no pod) holds 1 MiB"
    assert devices.unclaimed(GPU_0) == both
    violations.strangers({})
    assert shown(metrics, "vgpu_device_unclaimed_processes") == []
    assert devices.unclaimed(GPU_0) == ""
    assert await events.take() == [StrangersChanged()] * 3


def test_a_device_that_never_had_processes_of_no_claim_has_no_condition_of_them() -> None:
    assert unclaimed(a_device(), "") == []
    (found,) = unclaimed(a_device(), "miner holds it")
    assert (found.status, found.reason, found.message) == ("True", "Found", "miner holds it")
    before = {"type": "UnclaimedProcesses", "status": "True", "reason": "Found", "message": "x"}
    (gone,) = unclaimed(a_device(before), "")
    assert (gone.status, gone.reason) == ("False", "NoneFound")
