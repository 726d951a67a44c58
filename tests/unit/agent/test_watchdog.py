"""The watchdog finds the claim of each process, excess use, and the consequences."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_device
from set_clock import SetClock
from vgpu_api import names
from vgpu_api.effective import Use
from vgpu_api.quantity import MIB
from vgpu_nodeagent.config import OnViolation
from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.abi import CorePolicy
from vgpu_nodeagent.enforcement.allocations import Allocations, HostFolders
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.host_pids import write_host_pids
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.enforcement.page import DeviceLimit, grant
from vgpu_nodeagent.enforcement.watchdog import (
    Account,
    Signals,
    Stranger,
    Violation,
    Watchdog,
    pause_s,
)
from vgpu_nodeagent.errors import DriverUnavailable
from vgpu_nodeagent.state.slots import ClaimAllocation, SlotAllocation, SlotState

POD, OTHER_POD = (f"{n}0000000-1111-2222-3333-444444444444" for n in (1, 2))
CLAIM, OTHER_CLAIM = "claim-uid-1", "claim-uid-2"
SPACE, START = 4026532001, 123456
LIMIT_MIB = 4000


def a_holding(claim: str, pod: str, name: str) -> ClaimAllocation:
    return ClaimAllocation(
        claim, "ns", name, "then", pod, f"pod-of-{name}", {GPU_0: Use(LIMIT_MIB, 0, 1)}
    )


STATE = SlotState(
    slot_allocations={
        "slot-1": SlotAllocation("slot-1", ("1",), 0.0, POD, "main", CLAIM),
        "slot-2": SlotAllocation("slot-2", ("2",), 0.0, OTHER_POD, "main", OTHER_CLAIM),
    },
    claim_allocations={
        CLAIM: a_holding(CLAIM, POD, "one"),
        OTHER_CLAIM: a_holding(OTHER_CLAIM, OTHER_POD, "two"),
    },
)


class ASecondLater(SetClock):
    """Each sample is a second after the previous one."""

    def monotonic(self) -> float:
        self.time += 1.0
        return self.time


class Remembered(Signals):
    """A recorder of signals, which reach no process."""

    def __init__(self, world: World, *policies: OnViolation) -> None:
        super().__init__(*policies)
        self._world = world

    def send(self, pid: int, number: int) -> None:
        self._world.kill(pid, number)


class World:
    """A machine whose processes and driver a test sets, with a record of the consequences."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.proc.mkdir()
        self.driver = ObedientDriver([a_driver_device(), a_driver_device(GPU_1, 1)])
        library = Library("build", ())
        self.state = STATE
        self.allocations = Allocations(
            root / "slots",
            SpecFolder(root / "cdi"),
            library=library,
            host=HostFolders(proc=self.proc),
        )
        for slot_allocation in STATE.slot_allocations:
            self.allocations.create(slot_allocation)
            limits = [DeviceLimit(GPU_0, LIMIT_MIB * MIB, 0)]
            grant(root / "slots" / slot_allocation / "limits", limits, name=slot_allocation)
        self.seen: list[tuple[str, ...]] = []
        self.measured: dict[tuple[str, str, str], Account] = {}
        self.unclaimed: list[dict[str, tuple[Stranger, ...]]] = []
        self.held: set[str] = set()
        self.clock = ASecondLater()
        self.sentences: list[str] = []
        self.cleared: list[tuple[str, float]] = []
        self.signals: list[tuple[int, int]] = []
        self.add("self", "", pid=1)

    def violated(
        self, claim_allocation: ClaimAllocation, violation: Violation, uuid: str, sentence: str
    ) -> None:
        self.seen.append((violation.value, claim_allocation.claim_name))
        self.sentences.append(sentence)

    def obeys(self, claim_allocation: ClaimAllocation, remaining: Mapping[Violation, str]) -> None:
        still = [f"{violation.value} remains" for violation in remaining]
        self.seen.append((*(still or ["obeys"]), claim_allocation.claim_name))

    def confirmed(self, claim_allocation: ClaimAllocation) -> None:
        self.cleared.append((claim_allocation.claim_name, self.clock.time))

    def accounts(self, found: Mapping[tuple[str, str, str], Account]) -> None:
        self.measured = dict(found)

    def strangers(self, found: Mapping[str, tuple[Stranger, ...]]) -> None:
        self.unclaimed.append(dict(found))

    def held_pods(self) -> Collection[str]:
        return self.held

    def kill(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))
        if pid == 404:
            raise ProcessLookupError(pid)

    def add(
        self, host_pid: int | str, cgroup: str, *, pid: int = 7, slot_allocation: str = ""
    ) -> None:
        """Add a process in a cgroup, with or without the mapped region of a lease."""
        folder = self.proc / str(host_pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns" / "pid").symlink_to(f"pid:[{SPACE}]")
        (folder / "ns" / "time").symlink_to("time:[1]")
        (folder / "status").write_text(f"NSpid:\t{host_pid}\t{pid}\n")
        (folder / "stat").write_text(f"{host_pid} (x) S {'0 ' * 18}{START} 0\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "comm").write_text("program\n")
        inode = (
            self.allocations.region_path(slot_allocation).stat().st_ino if slot_allocation else 0
        )
        maps = f"7f00-7f01 rw-s 0 00:01 {inode}  /usr/local/vgpu/usage/region\n"
        (folder / "maps").write_text(maps if slot_allocation else "")

    def watchdog(
        self,
        on_violation: OnViolation = OnViolation.REPORT,
        on_unclaimed: OnViolation = OnViolation.REPORT,
    ) -> Watchdog:
        return Watchdog(
            self.driver,
            self,
            self.allocations,
            self,
            signals=Remembered(self, on_violation, on_unclaimed),
            clock=self.clock,
        )

    async def looks(self, count: int, watchdog: Watchdog | None = None) -> None:
        """Look this number of times, a second apart."""
        watchdog = watchdog or self.watchdog()
        for _ in range(count):
            await watchdog.look()

    def share(self, uuid: str, cores: int, policy: CorePolicy = CorePolicy.FORCE) -> None:
        """Set the compute settings in the page of the first claim's container."""
        limits = [DeviceLimit(uuid, LIMIT_MIB * MIB, cores, policy)]
        grant(self.allocations.region_path("slot-1").parents[1] / "limits", limits, name="slot-1")

    def compute(self, percent: Mapping[int, float], uuid: str = GPU_0) -> None:
        """Set each process's use of a device's compute, by host PID."""
        self.driver.compute = {uuid: dict(percent)}

    def hold(self, held: Mapping[int, int], uuid: str = GPU_0) -> None:
        """Set the memory that the driver counts, in MiB by host PID."""
        self.driver.processes = {uuid: {pid: mib * MIB for pid, mib in held.items()}}


CGROUP = f"/kubepods/burstable/pod{POD}/0123abcd"
SYSTEMD = (
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"
    "/cri-containerd-0123abcd.scope"
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


DOCKER_IN_A_POD = (f"{CGROUP}/docker/4567cdef", f"{SYSTEMD}/system.slice/docker-4567cdef.scope")


@pytest.mark.parametrize("cgroup", [CGROUP, SYSTEMD, *DOCKER_IN_A_POD])
async def test_memory_that_passed_by_the_library_is_found_by_the_cgroup(
    world: World, cgroup: str
) -> None:
    world.add(100, cgroup)
    world.add(101, cgroup)
    world.hold({100: 3000, 101: 2000, 555: 9000})
    watchdog = world.watchdog()
    await watchdog.look()
    assert world.seen == []  # a single look may see memory that is being freed
    await watchdog.look()
    await watchdog.look()
    assert world.seen == [("MemoryLimitViolated", "one")]
    assert world.sentences == [
        f"held up to 5000 MiB of device {GPU_0} in the last minute, 0 MiB by its own ledger; "
        "its limit is 4000 MiB"
    ]
    assert world.signals == []


async def test_where_pods_have_no_cgroups_the_mapped_region_tells(world: World) -> None:
    world.add(100, "/", slot_allocation="slot-2")
    world.hold({100: 5000})
    await world.looks(2)
    assert world.seen == [("MemoryLimitViolated", "two")]


async def test_a_pod_cannot_put_its_memory_on_another_pods_account(world: World) -> None:
    world.add(100, CGROUP, slot_allocation="slot-2")  # it maps a neighbour's region
    world.hold({100: 5000})
    await world.looks(2)
    assert world.seen == [("MemoryLimitViolated", "one")]


async def test_a_device_that_the_claim_has_no_share_of_is_not_its_to_use(world: World) -> None:
    world.add(100, CGROUP)
    world.hold({100: 500}, uuid=GPU_1)
    await world.looks(2)
    assert world.seen == [("MemoryLimitViolated", "one")]
    assert "its limit is 0 MiB" in world.sentences[0]


async def test_neither_is_its_compute(world: World) -> None:
    world.add(100, CGROUP)
    world.hold({100: 0}, uuid=GPU_1)
    world.compute({100: 30.0}, uuid=GPU_1)
    await world.looks(40)
    assert world.seen == [("ComputeLimitViolated", "one")]
    assert world.sentences[0].endswith("its share is 0 %")


async def test_a_claim_that_obeys_again_may_be_caught_again(world: World) -> None:
    world.add(100, CGROUP)
    watchdog = world.watchdog()
    for held, looks in ((5000, 2), (4000, 29), (5000, 1), (4000, 31), (5000, 2)):
        world.hold({100: held})
        for _ in range(looks):
            await watchdog.look()
    violated = ("MemoryLimitViolated", "one")
    assert world.seen == [violated, ("obeys", "one"), violated]


async def test_who_obeys_is_confirmed_once_after_half_a_minute_and_who_violates_is_not(
    world: World,
) -> None:
    """An agent before this one may have reported the first, and has forgotten it."""
    world.add(100, CGROUP, slot_allocation="slot-1")
    world.hold({100: 5000})
    watchdog = world.watchdog()
    await world.looks(31, watchdog)
    assert world.cleared == []
    await world.looks(60, watchdog)
    assert world.cleared == [("two", 32.0)]
    world.hold({100: 100})
    await world.looks(100, watchdog)
    assert [name for name, _ in world.cleared] == ["two", "one"]


async def test_memory_and_compute_are_told_apart_and_end_apart(world: World) -> None:
    world.share(GPU_0, 20)
    world.add(100, CGROUP)
    world.hold({100: 5000})
    world.compute({100: 90.0})
    watchdog = world.watchdog()
    await world.looks(40, watchdog)
    assert world.seen == [("MemoryLimitViolated", "one"), ("ComputeLimitViolated", "one")]
    world.hold({100: 100})
    await world.looks(31, watchdog)
    assert world.seen[2:] == [("ComputeLimitViolated remains", "one")]
    world.compute({100: 20.0})
    await world.looks(150, watchdog)
    assert world.seen[3:] == [("obeys", "one")]


class Lives:
    """A program that starts a process for each kernel, four a second; a sample sees one."""

    def __init__(self, world: World, cgroup: str, first: int) -> None:
        self._world, self._cgroup, self._next = world, cgroup, first

    def go_on(self) -> dict[int, float]:
        """Return the compute of a second's processes, of which the last is alive."""
        alive = self._next + 3
        self._world.add(alive, self._cgroup)
        self._next += 4
        return dict.fromkeys(range(alive - 3, alive + 1), 20.0)

    def end(self) -> None:
        """End the living process."""
        shutil.rmtree(self._world.proc / str(self._next - 1))


async def test_processes_that_end_between_two_looks_are_those_of_the_claim_that_starts_them(
    world: World,
) -> None:
    world.share(GPU_0, 25)
    world.hold({})
    watchdog, lives = world.watchdog(), Lives(world, CGROUP, 1000)
    for _ in range(60):
        world.compute(lives.go_on())
        await watchdog.look()
        lives.end()
    assert world.seen == [("ComputeLimitViolated", "one")]


async def test_processes_that_ended_accuse_nobody_where_two_claims_start_and_end_them(
    world: World,
) -> None:
    world.share(GPU_0, 25)
    world.hold({})
    one = Lives(world, CGROUP, 1000)
    other = Lives(world, f"/kubepods/pod{OTHER_POD}/0123abcd", 100_000)
    watchdog = world.watchdog()
    for _ in range(60):
        world.compute(one.go_on() | other.go_on())
        await watchdog.look()
        one.end()
        other.end()
    assert world.seen == []


async def test_a_process_that_ended_is_still_that_of_its_claim_and_its_pid_is_not(
    world: World,
) -> None:
    world.share(GPU_0, 25)
    world.hold({})
    world.add(100, CGROUP)
    world.compute({100: 90.0})
    watchdog = world.watchdog()
    await world.looks(20, watchdog)
    shutil.rmtree(world.proc / "100")
    await watchdog.look()
    assert world.measured["ns", "one", GPU_0].compute_percent == pytest.approx(90.0)
    world.add(100, "/system.slice/other.service")
    (world.proc / "100" / "stat").write_text(f"100 (x) S {'0 ' * 18}{START + 1} 0\n")
    await world.looks(19, watchdog)
    assert world.measured["ns", "one", GPU_0].compute_percent == pytest.approx(
        90.0 * 21 / 40, abs=3
    )


async def test_a_process_with_another_file_in_the_place_of_its_limit_page_is_reported(
    world: World,
) -> None:
    world.add(100, CGROUP)
    world.add(101, CGROUP)
    world.hold({100: 10, 101: 10})
    for pid in (100, 101):
        page = world.proc / str(pid) / "root" / names.CONTAINER_LIMITS[1:]
        page.parent.mkdir(parents=True)
        page.hardlink_to(world.allocations.page_path("slot-1"))
    watchdog = world.watchdog(OnViolation.SIGNAL)
    await world.looks(5, watchdog)
    assert world.seen == []
    page.unlink()
    page.write_bytes(b"a page that grants more")
    await watchdog.look()
    assert world.seen == [("LimitPageHidden", "one")]
    assert world.sentences == [
        f"uses device {GPU_0} with another file in the place of its limit page "
        "/usr/local/vgpu/limits (PID 101)"
    ]
    assert (101, signal.SIGTERM) in world.signals
    world.hold({100: 10})
    await world.looks(31, watchdog)
    assert world.seen[1:] == [("obeys", "one")]


async def test_a_share_of_policy_default_is_looked_at_beside_others_only(world: World) -> None:
    world.share(GPU_0, 20, CorePolicy.DEFAULT)
    world.add(100, CGROUP)
    world.add(200, f"/kubepods/pod{OTHER_POD}/0123abcd")
    world.hold({100: 10, 200: 10})
    world.compute({100: 90.0})
    watchdog = world.watchdog()
    await world.looks(100, watchdog)
    assert world.seen == []
    world.compute({100: 90.0, 200: 5.0})
    await world.looks(40, watchdog)
    assert world.seen == [("ComputeLimitViolated", "one")]


@pytest.mark.parametrize(
    ("cores", "policy"), [(0, CorePolicy.FORCE), (100, CorePolicy.FORCE), (20, CorePolicy.DISABLE)]
)
async def test_who_may_use_all_compute_violates_nothing(
    world: World, cores: int, policy: CorePolicy
) -> None:
    world.share(GPU_0, cores, policy)
    world.add(100, CGROUP)
    world.hold({100: 10})
    world.compute({100: 100.0})
    await world.looks(100)
    assert world.seen == []


async def test_a_driver_that_cannot_tell_who_computes_accuses_nobody_of_it(world: World) -> None:
    world.share(GPU_0, 20)
    world.add(100, CGROUP)
    world.hold({100: 10})
    world.driver.compute = {}
    await world.looks(100)
    assert world.seen == []


async def test_signals_ask_first_and_kill_who_stays(world: World) -> None:
    for pid in (100, 404):
        world.add(pid, CGROUP)
    world.hold({100: 5000, 404: 10})
    watchdog = world.watchdog(OnViolation.SIGNAL)
    await watchdog.look()
    assert world.signals == []
    await watchdog.look()
    assert set(world.signals) == {(100, signal.SIGTERM), (404, signal.SIGTERM)}
    world.hold({100: 5000})
    await watchdog.look()
    assert world.signals[2:] == [(100, signal.SIGKILL)]
    world.hold({})
    await world.looks(31, watchdog)
    assert world.seen == [("MemoryLimitViolated", "one"), ("obeys", "one")]


async def test_no_process_is_signalled_that_took_the_pid_of_one_that_ended(world: World) -> None:
    world.add(100, CGROUP)
    world.hold({100: 5000})
    watchdog = world.watchdog(OnViolation.SIGNAL)
    await watchdog.look()
    (world.proc / "100" / "cgroup").write_text("0::/system.slice/sshd.service\n")
    await watchdog.look()
    assert world.seen == [("MemoryLimitViolated", "one")]
    assert world.signals == []


async def test_a_driver_that_does_not_say_accuses_nobody(world: World) -> None:
    class Silent(ObedientDriver):
        async def process_memory(self) -> Mapping[str, Mapping[int, int]]:
            raise DriverUnavailable("NVML did not answer within 10 s")

    world.driver = Silent([a_driver_device()])
    with pytest.raises(DriverUnavailable):
        await world.watchdog().look()
    assert world.seen == []


async def test_a_process_of_no_claim_is_reported_while_it_stays(world: World) -> None:
    stranger_pod = "30000000-1111-2222-3333-444444444444"
    world.add(100, CGROUP)
    world.add(300, f"/kubepods/pod{stranger_pod}/0123abcd")
    world.add(301, "/user.slice")
    world.hold({100: 10, 300: 15 * 1024, 301: 20, os.getpid(): 5, 302: 5})  # 302 has ended
    watchdog = world.watchdog()
    await world.looks(2, watchdog)
    assert world.unclaimed == []
    await world.looks(3, watchdog)
    assert world.unclaimed == [
        {
            GPU_0: (
                Stranger(300, "program", stranger_pod, 15 << 30),
                Stranger(301, "program", "", 20 * MIB),
            )
        }
    ]
    world.hold({100: 10})
    await world.looks(1, watchdog)
    assert world.unclaimed[1:] == [{}]
    assert world.seen == []


async def test_processes_of_a_held_pod_of_hamis_are_neither_reported_nor_ended(
    world: World,
) -> None:
    held = "30000000-1111-2222-3333-444444444444"
    world.held = {held}
    world.add(300, f"/kubepods/pod{held}/0123abcd")
    world.hold({300: 10})
    await world.looks(6, world.watchdog(on_unclaimed=OnViolation.SIGNAL))
    assert world.unclaimed == []
    assert world.signals == []


async def test_processes_of_pods_without_a_claim_are_ended_where_that_is_asked_for(
    world: World,
) -> None:
    """They get SIGTERM, then SIGKILL; processes of the node and of claims are left alone."""
    world.add(100, CGROUP)
    world.add(300, "/kubepods/pod30000000-1111-2222-3333-444444444444/0123abcd")
    world.add(301, "/user.slice")
    world.hold({100: 10, 300: 10, 301: 10})
    watchdog = world.watchdog(on_unclaimed=OnViolation.SIGNAL)
    await world.looks(2, watchdog)
    assert world.signals == []
    await world.looks(2, watchdog)
    assert world.signals == [(300, signal.SIGTERM), (300, signal.SIGKILL)]


async def test_what_was_taken_is_measured(world: World) -> None:
    world.share(GPU_0, 20)
    world.add(100, CGROUP)
    world.hold({100: 5000})
    world.compute({100: 50.0})
    await world.looks(11)
    account = world.measured["ns", "one", GPU_0]
    assert account.excess_byte_seconds == 10 * 1000 * MIB
    assert account.peak_bytes == 5000 * MIB
    assert account.compute_percent == 50.0
    assert world.measured["ns", "two", GPU_0] == Account(0.0, 0, None)


PERIODS, DUTIES, PHASES = (1.0, 3.0, 10.0), (0.5, 0.2), 8


async def run_pulses(
    world: World, seed: int, read: Callable[[float], None], limit_s: float
) -> float:
    """Look at irregular times until an event is recorded; return its time in virtual seconds."""
    rng = random.Random(seed)
    watchdog = world.watchdog()
    while world.clock.time < limit_s and not world.seen:
        read(world.clock.time)
        await watchdog.look()
        world.clock.time += pause_s(rng.random()) - 1.0  # a look counts as one second
    return world.clock.time


@pytest.mark.parametrize("duty", DUTIES)
@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("seed", range(PHASES))
async def test_pulses_of_memory_are_reported_whatever_their_period(
    world: World, period: float, duty: float, seed: int
) -> None:
    """80 GiB are in use with a limit of 4 GiB, for half or a fifth of each 1, 3 or 10 s."""
    world.add(100, CGROUP)
    phase = period * seed / PHASES

    def read(now: float) -> None:
        above = (now + phase) % period < period * duty
        world.hold({100: 80 << 10 if above else 100})

    when = await run_pulses(world, seed, read, 120)
    assert world.seen == [("MemoryLimitViolated", "one")]
    assert when < 90
    assert f"held up to {80 << 10} MiB" in world.sentences[0]


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("seed", range(PHASES))
async def test_pulses_of_compute_are_reported_whatever_their_period(
    world: World, period: float, seed: int
) -> None:
    """All compute is in use for half of the time, with a share of 20 %."""
    world.share(GPU_0, 20)
    world.add(100, CGROUP)
    world.hold({100: 100})

    def read(now: float) -> None:
        at_work = (now + period * seed / PHASES) % period < period / 2
        world.compute({100: 100.0 if at_work else 0.0})

    when = await run_pulses(world, seed, read, 180)
    assert world.seen == [("ComputeLimitViolated", "one")]
    assert when < 90


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("seed", range(3))  # ten minutes of virtual time cost half a second
async def test_pulses_within_the_share_are_no_violation(
    world: World, period: float, seed: int
) -> None:
    """The library lets a kernel finish and delays the next, so the average is 20 %."""
    world.share(GPU_0, 20)
    world.add(100, CGROUP)
    world.hold({100: LIMIT_MIB})
    rng = random.Random(seed)

    def read(now: float) -> None:
        world.compute({100: 100.0 if (now + rng.random()) % period < period * 0.15 else 0.0})

    await run_pulses(world, seed, read, 600)
    assert world.seen == []


def own(path: Path, slot: int, pid: int, *, start: int = START) -> None:
    """Give a slot to a process like the library."""
    word = pid | (SPACE & 0xFFFFF) << abi.OWNER_PID_BITS | (start & 0x1FFFFF) << 42
    header = abi.REGION_HEADER.pack(
        abi.REGION_MAGIC, abi.ABI_VERSION, abi.REGION_BYTES, abi.REGION_SLOTS, 64, 1, slot + 1
    )
    with path.open("r+b") as file:
        file.write(header)
        file.seek(abi.REGION_SLOTS_OFFSET + slot * abi.REGION_SLOT_BYTES)
        file.write(abi.OWNER.pack(word))


def host_pid(path: Path, slot: int) -> int:
    at = abi.REGION_SLOTS_OFFSET + slot * abi.REGION_SLOT_BYTES + abi.SLOT_HOST_PID_OFFSET
    (found,) = abi.SLOT_HOST_PID.unpack_from(path.read_bytes(), at)
    return int(found)


async def test_processes_are_told_who_they_are_on_the_host(world: World) -> None:
    region = world.allocations.region_path("slot-1")
    own(region, 0, 7)
    own(region, 1, 8)
    world.add(1007, CGROUP, pid=7, slot_allocation="slot-1")
    world.add(1008, CGROUP, pid=8, slot_allocation="slot-1")
    world.hold({1007: 10, 1008: 10})
    await world.watchdog().look()
    assert (host_pid(region, 0), host_pid(region, 1)) == (1007, 1008)
    assert write_host_pids(region, [1007, 1008], proc=world.proc) == 0  # nothing new


def test_a_slot_that_two_processes_may_own_is_left_alone(world: World) -> None:
    region = world.allocations.region_path("slot-1")
    own(region, 0, 7, start=0)
    world.add(1007, CGROUP, pid=7, slot_allocation="slot-1")
    world.add(2007, CGROUP, pid=7, slot_allocation="slot-1")
    assert write_host_pids(region, [1007, 2007], proc=world.proc) == 0
    assert host_pid(region, 0) == 0
