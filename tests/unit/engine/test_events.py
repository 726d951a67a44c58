"""Events on claims and devices report each unusual change once."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_claim, a_device, a_request
from replica import Replica
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.effects import RecordEvent


class Told:
    """A record of the events that a replica's engine emits."""

    def __init__(self, replica: Replica) -> None:
        self._recorded: list[RecordEvent] = []
        recorder = replica.recorder

        def record(regarding: Any, **words: Any) -> None:
            self._recorded.append(RecordEvent(regarding, **words))

        recorder.record = record

    def of(self, kind: str) -> list[tuple[str, str, str]]:
        """Return type, reason and note of the events on objects of a kind."""
        return [
            (event.type, event.reason, event.note)
            for event in self._recorded
            if event.regarding.kind == kind
        ]


@pytest.fixture
def told(replica: Replica) -> Told:
    return Told(replica)


def an_immediate(memory: str = "1Gi") -> VGPUClaim:
    return a_claim("mine", requests=[a_request(memory=memory)], binding_mode="Immediate")


async def test_a_claim_is_told_that_it_was_given_devices_and_not_again(
    replica: Replica, told: Told
) -> None:
    replica.device()
    replica.claim(an_immediate())
    await replica.settle()
    assert told.of("VGPUClaim") == [("Normal", "Allocated", "1 GPU on node-1")]
    replica.engine.lead()
    await replica.settle()
    assert len(told.of("VGPUClaim")) == 1


async def test_a_claim_is_told_why_it_was_refused_and_then_that_it_was_served(
    replica: Replica, told: Told
) -> None:
    replica.device(memory_mib=16384, healthy=False)
    replica.claim(an_immediate())
    await replica.told()
    ((kind, reason, note),) = told.of("VGPUClaim")
    assert (kind, reason) == ("Warning", "CardNotHealth")
    assert note.startswith("1/1 CardNotHealth")
    replica.news.device_changed(a_device(memory_mib=16384, resource_version=2))
    await replica.settle()
    assert [reason for _, reason, _ in told.of("VGPUClaim")] == ["CardNotHealth", "Allocated"]


async def test_a_released_claim_is_told_why(replica: Replica, told: Told) -> None:
    replica.device()
    replica.claim(an_immediate())
    await replica.settle()
    raw = replica.api.claim("mine")
    raw["status"]["released"] = {"allocationID": raw["status"]["allocation"]["id"]}
    replica.claim(VGPUClaim.read(raw))
    await replica.settle()
    assert told.of("VGPUClaim")[-1] == ("Normal", "Released", "its pod has ended")


async def test_a_claim_that_waits_for_its_pod_has_no_events(replica: Replica, told: Told) -> None:
    replica.claim(a_claim("mine", requests=[a_request()]))
    await replica.told()
    assert "WaitingForPod" in str(replica.api.claim("mine")["status"])
    assert told.of("VGPUClaim") == []


async def test_a_pods_own_claim_has_no_events_because_the_pod_has_them(
    replica: Replica, told: Told
) -> None:
    replica.device()
    pod = replica.offered()
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None
    replica.offered("pod-2", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16384})
    await replica.told()
    assert told.of("VGPUClaim") == []
    assert [reason for _, reason, _ in told.of("Pod")] == ["CardInsufficientMemory"]


async def test_a_violation_is_told_once_for_each_time_that_it_begins(
    replica: Replica, told: Told
) -> None:
    replica.device()
    replica.claim(an_immediate())
    await replica.settle()

    def report(status: str, since: str) -> None:
        raw = replica.api.claim("mine")
        kept = [c for c in raw["status"]["conditions"] if c["type"] != "Violated"]
        violated = {
            "type": "Violated",
            "status": status,
            "reason": "MemoryLimitViolated",
            "message": "uses 2,000 MiB of 1,024",
            "lastTransitionTime": since,
        }
        raw["status"]["conditions"] = [*kept, violated]
        replica.claim(VGPUClaim.read(raw))

    for status, since, count in (
        ("True", "2026-01-01T00:00:00Z", 1),
        ("True", "2026-01-01T00:00:00Z", 1),
        ("False", "2026-01-01T00:01:00Z", 1),
        ("True", "2026-01-01T00:02:00Z", 2),
    ):
        report(status, since)
        await replica.settle()
        violations = [event for event in told.of("VGPUClaim") if event[1] == "Violated"]
        assert violations == [("Warning", "Violated", "uses 2,000 MiB of 1,024")] * count


async def test_a_device_is_told_when_it_goes_out_of_service_and_when_it_is_back(
    replica: Replica, told: Told
) -> None:
    replica.device()
    await look(replica)
    assert told.of("GPUDevice") == []
    replica.news.device_changed(a_device(healthy=False, resource_version=2))
    await look(replica)
    ((kind, reason, note),) = told.of("GPUDevice")
    assert (kind, reason) == ("Warning", "OutOfService")
    assert note.startswith("Healthy is False")
    await look(replica)
    replica.news.device_changed(a_device(resource_version=3))
    await look(replica)
    assert len(told.of("GPUDevice")) == 2
    assert told.of("GPUDevice")[1][:2] == ("Normal", "BackInService")


async def test_a_device_that_is_found_to_have_anothers_uuid_is_told_so(
    replica: Replica, told: Told
) -> None:
    replica.device(name="gpu-0.other", node="node-2")
    await look(replica)
    replica.device()
    await look(replica)
    assert told.of("GPUDevice") == [
        (
            "Warning",
            "OutOfService",
            "GPUDevice gpu-0 of node node-1 is older and has UUID GPU-0, too",
        )
    ]


async def look(replica: Replica) -> None:
    """Let a second pass, because devices are described once a second."""
    replica.time += 1
    await replica.settle()
