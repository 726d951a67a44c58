"""Pods on a device yield to pods of higher priority, by a computed share and for a limited time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_device
from set_clock import SetClock
from vgpu_api.effective import Use
from vgpu_nodeagent.enforcement import page
from vgpu_nodeagent.enforcement.abi import UNLIMITED, CorePolicy, PageState
from vgpu_nodeagent.enforcement.allocations import Allocations, HostFolders
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.enforcement.priority_throttle import (
    ACTIVE_S,
    LEAST_PERCENT,
    PriorityThrottle,
    ceilings,
)
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotAllocation, SlotState, close

URGENT, PATIENT = (f"{n}0000000-1111-2222-3333-444444444444" for n in (1, 2))
PIDS = {URGENT: 100, PATIENT: 200}


def a_limit(priority: int, cores: int = 0, policy: CorePolicy = CorePolicy.DEFAULT) -> DeviceLimit:
    return DeviceLimit(GPU_0, UNLIMITED, cores, policy, priority)


def test_on_equal_terms_nobody_makes_way() -> None:
    assert ceilings({"a": a_limit(1), "b": a_limit(1, 30)}, {"a", "b"}) == {}


def test_nobody_makes_way_for_who_does_nothing_or_is_less_urgent() -> None:
    assert ceilings({"a": a_limit(0), "b": a_limit(1)}, {"b"}) == {}


def test_who_takes_all_leaves_the_least_to_all_below() -> None:
    limits = {"a": a_limit(0), "b": a_limit(1), "c": a_limit(2, 40), "d": a_limit(2)}
    assert ceilings(limits, {"a"}) == dict.fromkeys("bcd", LEAST_PERCENT)


@pytest.mark.parametrize("policy", [CorePolicy.DEFAULT, CorePolicy.FORCE])
def test_who_has_a_share_leaves_the_rest(policy: CorePolicy) -> None:
    limits = {"a": a_limit(0, 60, policy), "b": a_limit(1)}
    assert ceilings(limits, {"a", "b"}) == {"b": 40}


@pytest.mark.parametrize("cores", [0, 100])
def test_who_is_never_limited_takes_all(cores: int) -> None:
    limits = {"a": a_limit(0, 60, CorePolicy.DISABLE), "b": a_limit(0, cores), "c": a_limit(1)}
    assert ceilings(limits, {"a"}) == {"c": LEAST_PERCENT}
    assert ceilings(limits, {"b"}) == {"c": LEAST_PERCENT}


def test_a_promised_share_that_fits_is_kept_and_the_others_divide_what_remains() -> None:
    limits = {
        "a": a_limit(0, 40),
        "b": a_limit(1, 20),
        "c": a_limit(1),
        "d": a_limit(1),
        "idle": a_limit(1),
    }
    assert ceilings(limits, {"a", "b", "c", "d"}) == {"b": 20, "c": 20, "d": 20, "idle": 13}


def test_promised_shares_beyond_what_is_left_shrink_alike() -> None:
    limits = {"a": a_limit(0, 70), "b": a_limit(1, 40), "c": a_limit(1, 20)}
    assert ceilings(limits, {"a", "b", "c"}) == {"b": 20, "c": 10}


def test_every_level_leaves_less_to_the_next() -> None:
    limits = {"a": a_limit(0, 30), "b": a_limit(1, 50), "c": a_limit(2), "d": a_limit(3)}
    assert ceilings(limits, {"a", "b", "c", "d"}) == {"b": 50, "c": 20, "d": LEAST_PERCENT}


class World:
    """Two pods on one device, of which the first is more urgent; a test sets activity and time."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.clock = SetClock(50.0)
        self.driver = ObedientDriver([a_driver_device(), a_driver_device(GPU_1, 1)])
        self.root = root / "slots"
        self.allocations = Allocations(
            self.root,
            SpecFolder(root / "cdi"),
            library=Library("build", ()),
            host=HostFolders(proc=self.proc),
        )
        self.state = SlotState(
            {pod: SlotAllocation(pod, (pod,), 0.0, pod, "main", f"claim-{pod}") for pod in PIDS},
            {f"claim-{pod}": a_holding(pod) for pod in PIDS},
        )
        for priority, (pod, pid) in enumerate(PIDS.items()):
            self.allocations.create(pod)
            self.grant(pod, DeviceLimit(GPU_0, UNLIMITED, 0, priority=priority))
            folder = self.proc / str(pid)
            folder.mkdir(parents=True)
            (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{pod}/0123abcd\n")
            (folder / "maps").write_text("")
        self.precedence = self.another()

    def another(self) -> PriorityThrottle:
        return PriorityThrottle(
            self.driver,
            self,
            self.allocations,
            clock=self.clock,
        )

    def grant(self, slot_allocation: str, *limits: DeviceLimit) -> None:
        page.grant(
            self.root / slot_allocation / "limits", limits, name=slot_allocation, host_bytes=7 << 20
        )

    def at_work(self, *pods: str) -> None:
        self.driver.compute = {GPU_0: {PIDS[pod]: 40.0 for pod in pods}, GPU_1: {}}

    async def ceiling(self, slot_allocation: str = PATIENT) -> int:
        """Return the ceiling of a pod after another look."""
        await self.precedence.look()
        return self.allocations.content(slot_allocation).devices[0].ceiling


def a_holding(pod: str) -> ClaimAllocation:
    return ClaimAllocation(f"claim-{pod}", "ns", "claim", "then", pod, "pod", {GPU_0: Use(1, 0, 1)})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_the_patient_make_way_while_the_urgent_compute_and_a_little_longer(
    world: World,
) -> None:
    world.at_work(PATIENT)
    assert await world.ceiling() == 0
    world.at_work(PATIENT, URGENT)
    assert await world.ceiling() == LEAST_PERCENT
    assert await world.ceiling(URGENT) == 0
    world.at_work(PATIENT)
    world.clock.time += ACTIVE_S - 0.1
    assert await world.ceiling() == LEAST_PERCENT
    world.clock.time += 0.1
    assert await world.ceiling() == 0


async def test_nothing_else_on_the_page_changes(world: World) -> None:
    before = world.allocations.content(PATIENT)
    world.at_work(URGENT)
    await world.precedence.look()
    held = world.allocations.content(PATIENT)
    assert held.devices == (replace(before.devices[0], ceiling=LEAST_PERCENT),)
    assert (held.host_bytes, held.name, held.state) == (7 << 20, PATIENT, PageState.GRANT)


async def test_a_page_is_written_when_something_changes_and_not_at_every_look(world: World) -> None:
    world.at_work(URGENT)
    await world.precedence.look()
    written = world.allocations.content(PATIENT).epoch
    await world.precedence.look()
    assert world.allocations.content(PATIENT).epoch == written


async def test_a_container_that_starts_again_makes_way_again(world: World) -> None:
    world.at_work(URGENT)
    await world.precedence.look()
    world.grant(PATIENT, DeviceLimit(GPU_0, UNLIMITED, 0, priority=1))  # like PreStart
    assert await world.ceiling() == LEAST_PERCENT


async def test_the_end_of_the_urgent_claim_lets_the_others_go_at_once(world: World) -> None:
    world.at_work(URGENT)
    assert await world.ceiling() == LEAST_PERCENT
    world.allocations.close(URGENT)
    world.state = close(world.state, f"claim-{URGENT}")
    assert await world.ceiling() == 0


async def test_a_driver_that_cannot_tell_any_more_lets_them_go_in_time(world: World) -> None:
    world.at_work(URGENT)
    assert await world.ceiling() == LEAST_PERCENT
    world.driver.error = "hangs"
    assert await world.ceiling() == LEAST_PERCENT
    world.clock.time += ACTIVE_S
    assert await world.ceiling() == 0


async def test_an_agent_that_starts_again_lets_go_whom_nobody_is_before_any_more(
    world: World,
) -> None:
    world.at_work(URGENT)
    await world.precedence.look()
    world.allocations.close(URGENT)
    world.state = close(world.state, f"claim-{URGENT}")
    world.precedence = world.another()
    assert await world.ceiling() == 0


async def test_devices_are_apart(world: World) -> None:
    other = DeviceLimit(GPU_1, UNLIMITED, 0, priority=1)
    world.grant(PATIENT, DeviceLimit(GPU_0, UNLIMITED, 0, priority=1), other)
    world.at_work(URGENT)
    await world.precedence.look()
    assert world.allocations.content(PATIENT).devices[1] == other


async def test_where_all_are_of_one_priority_the_driver_is_not_asked(world: World) -> None:
    world.grant(PATIENT, DeviceLimit(GPU_0, UNLIMITED, 0, priority=0))
    asked = []
    world.driver.compute_since = lambda marks: asked.append(1)  # type: ignore[method-assign, assignment]
    assert await world.ceiling() == 0
    assert asked == []


async def test_pages_of_one_priority_are_read_again_only_after_a_grant(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.grant(PATIENT, DeviceLimit(GPU_0, UNLIMITED, 0, priority=0))
    world.at_work(URGENT)
    await world.precedence.look()
    read: list[str] = []
    content = world.allocations.content
    monkeypatch.setattr(
        world.allocations,
        "content",
        lambda slot_allocation: read.append(slot_allocation) or content(slot_allocation),
    )
    await world.precedence.look()
    assert read == []
    world.grant(PATIENT, DeviceLimit(GPU_0, UNLIMITED, 0, priority=1))
    world.state = replace(world.state)  # each real grant commits a new state
    await world.precedence.look()
    assert set(read) == {URGENT, PATIENT}
    assert content(PATIENT).devices[0].ceiling == LEAST_PERCENT


async def test_pages_that_grant_nothing_or_are_damaged_are_left_alone(world: World) -> None:
    world.at_work(URGENT, PATIENT)
    page.close(world.root / PATIENT / "limits", name=PATIENT)
    await world.precedence.look()
    assert world.allocations.content(PATIENT).state is PageState.CLOSED
    (world.root / URGENT / "limits").write_bytes(b"cut")
    await world.precedence.look()
    assert (world.root / URGENT / "limits").read_bytes() == b"cut"


async def test_a_process_of_nobodys_makes_nobody_make_way(world: World) -> None:
    (world.proc / "300").mkdir()
    (world.proc / "300" / "cgroup").write_text("0::/system.slice/other\n")
    (world.proc / "300" / "maps").write_text("")
    world.driver.compute = {GPU_0: {300: 40.0}}
    assert await world.ceiling() == 0
