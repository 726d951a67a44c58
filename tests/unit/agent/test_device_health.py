from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pynvml
import pytest

from agent_node import a_driver_device
from vgpu_nodeagent.discovery.drivers.base import DeviceEvent, PhysicalDevice, Repair, Severity
from vgpu_nodeagent.discovery.drivers.calls import CallThread
from vgpu_nodeagent.discovery.drivers.nvidia import classify
from vgpu_nodeagent.discovery.health import Health
from vgpu_nodeagent.errors import DriverUnavailable

DEVICES = ("GPU-0", "GPU-1")


def an_event(uuid: str = "GPU-0", severity: Severity = Severity.FATAL) -> DeviceEvent:
    return DeviceEvent(uuid, severity, "XID79", "fell off the bus")


def sick(health: Health) -> list[str]:
    return [uuid for uuid in DEVICES if health.problem(uuid) is not None]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_a_programs_own_xid_is_not_the_devices(xid: int) -> None:
    event = classify("GPU-0", pynvml.nvmlEventTypeXidCriticalError, xid)
    assert event.severity is Severity.APPLICATION


@pytest.mark.parametrize("xid", [48, 63, 74, 79, 94, 95, 119, 9999])
def test_every_other_xid_is_fatal(xid: int) -> None:
    event = classify("GPU-0", pynvml.nvmlEventTypeXidCriticalError, xid)
    assert (event.severity, event.reason) == (Severity.FATAL, f"XID{xid}")


def test_an_uncorrectable_memory_error_is_fatal() -> None:
    event = classify("GPU-0", pynvml.nvmlEventTypeDoubleBitEccError, 0)
    assert (event.severity, event.reason) == (Severity.FATAL, "DoubleBitECC")


def test_a_fatal_event_makes_its_device_sick_and_no_other() -> None:
    health = Health()
    assert health.note(an_event(), devices=DEVICES, now=0.0)
    assert sick(health) == ["GPU-0"]


def test_an_event_without_a_device_means_all_of_them() -> None:
    health = Health()
    health.note(an_event(""), devices=DEVICES, now=0.0)
    assert sick(health) == ["GPU-0", "GPU-1"]


def test_an_application_event_changes_nothing() -> None:
    health = Health()
    assert not health.note(an_event(severity=Severity.APPLICATION), devices=DEVICES, now=0.0)
    assert sick(health) == []


def shown(*uuids: str, repair: Repair | None = None) -> dict[str, PhysicalDevice]:
    return {uuid: replace(a_driver_device(uuid), repair=repair) for uuid in uuids}


RESET = Repair("GPUResetRequired", "it needs a GPU reset")


def test_a_device_recovers_after_a_quiet_probation_counted_from_its_last_error() -> None:
    health = Health(probation_s=300)
    health.note(an_event(), devices=DEVICES, now=0.0)
    assert not health.note(an_event(), devices=DEVICES, now=200.0)
    assert not health.review(shown(*DEVICES), now=499.0)
    assert sick(health) == ["GPU-0"]
    assert health.review(shown(*DEVICES), now=500.0)
    assert sick(health) == []


def test_a_device_that_needs_a_reset_stays_out_however_quiet_it_is() -> None:
    health = Health(probation_s=300)
    health.note(an_event(), devices=DEVICES, now=0.0)
    assert health.review(shown("GPU-0", repair=RESET), now=1.0)
    assert not health.review(shown("GPU-0", repair=RESET), now=1e6)
    problem = health.problem("GPU-0")
    assert problem is not None
    assert problem.reason == "GPUResetRequired"
    assert problem.message == "it needs a GPU reset, after fell off the bus"
    assert health.review(shown("GPU-0"), now=1e6 + 1)
    assert sick(health) == []


def test_a_device_that_was_reset_at_once_is_still_on_probation() -> None:
    health = Health(probation_s=300)
    health.note(an_event(), devices=DEVICES, now=0.0)
    health.review(shown("GPU-0", repair=RESET), now=1.0)
    health.review(shown("GPU-0"), now=2.0)
    problem = health.problem("GPU-0")
    assert problem is not None
    assert problem.reason == "XID79"


def test_a_device_that_needs_a_reset_when_the_agent_starts_is_out() -> None:
    health = Health()
    assert health.review(shown("GPU-0", repair=RESET), now=0.0)
    assert sick(health) == ["GPU-0"]


def test_a_device_that_the_driver_does_not_show_is_not_trusted_again() -> None:
    health = Health(probation_s=300)
    health.note(an_event(), devices=DEVICES, now=0.0)
    assert not health.review({}, now=1e6)
    assert sick(health) == ["GPU-0"]


async def test_a_call_that_hangs_is_given_up_and_later_ones_fail_at_once() -> None:
    thread, hang = CallThread("NVML", deadline_s=0.05), threading.Event()
    with pytest.raises(DriverUnavailable, match=r"did not answer within 0\.05 s"):
        await thread.call(hang.wait)
    with pytest.raises(DriverUnavailable, match="an earlier call still hangs"):
        await thread.call(lambda: 1)
    hang.set()
    async with asyncio.timeout(5):
        while True:
            try:
                assert await thread.call(lambda: 1) == 1
                break
            except DriverUnavailable:
                await asyncio.sleep(0)
    thread.close()


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_while_the_answer_comes_in_is_cancelled(turns: int) -> None:
    name = f"answers before the loop looks, {turns}"
    thread, may_answer = CallThread(name, deadline_s=5), threading.Event()
    waiting = asyncio.ensure_future(thread.call(may_answer.wait))
    await asyncio.sleep(0)
    may_answer.set()
    thread.close()
    next(known for known in threading.enumerate() if known.name == name).join(5)
    for _ in range(turns):
        await asyncio.sleep(0)
    was_asked = waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() == was_asked


async def test_what_a_call_raises_reaches_its_caller() -> None:
    thread = CallThread("NVML", deadline_s=5)

    def fail() -> None:
        raise DriverUnavailable("NVML: Driver Not Loaded")

    with pytest.raises(DriverUnavailable, match="Not Loaded"):
        await thread.call(fail)
    thread.close()
