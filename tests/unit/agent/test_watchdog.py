"""The watchdog over processes made by hand: whose they are, what is too much, what follows."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent_node import GPU_0, GPU_1, ObedientDriver, a_driver_card
from vgpu_api.effective import Use
from vgpu_api.quantity import MIB
from vgpu_nodeagent.config import OnViolation
from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.host_pids import tell_host_pids
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.enforcement.page import DeviceLimit, grant
from vgpu_nodeagent.enforcement.watchdog import Held, Watchdog
from vgpu_nodeagent.errors import DriverUnavailable
from vgpu_nodeagent.state.slots import Holding, Lease, SlotState

POD, OTHER_POD = (f"{n}0000000-1111-2222-3333-444444444444" for n in (1, 2))
CLAIM, OTHER_CLAIM = "claim-uid-1", "claim-uid-2"
SPACE, START = 4026532001, 123456
LIMIT_MIB = 4000


def a_holding(claim: str, pod: str, name: str) -> Holding:
    return Holding(claim, "ns", name, "then", pod, f"pod-of-{name}", {GPU_0: Use(LIMIT_MIB, 0, 1)})


STATE = SlotState(
    leases={
        "slot-1": Lease("slot-1", ("1",), 0.0, POD, "main", CLAIM),
        "slot-2": Lease("slot-2", ("2",), 0.0, OTHER_POD, "main", OTHER_CLAIM),
    },
    holdings={
        CLAIM: a_holding(CLAIM, POD, "one"),
        OTHER_CLAIM: a_holding(OTHER_CLAIM, OTHER_POD, "two"),
    },
)


class World:
    """A machine whose processes, driver and consequences a test sets and sees."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.proc.mkdir()
        self.driver = ObedientDriver([a_driver_card(), a_driver_card(GPU_1, 1)])
        library = Library("build", ())
        self.allocations = Allocations(root / "slots", SpecFolder(root / "cdi"), library=library)
        for lease in STATE.leases:
            self.allocations.create(lease)
            limits = [DeviceLimit(GPU_0, LIMIT_MIB * MIB, 0)]
            grant(root / "slots" / lease / "limits", limits, name=lease)
        self.seen: list[tuple[str, str]] = []
        self.sentences: list[str] = []
        self.signals: list[tuple[int, int]] = []
        self.add("self", "", pid=1)

    def violated(self, holding: Holding, held: Held) -> None:
        self.seen.append(("violated", holding.claim_name))
        self.sentences.append(str(held))

    def obeys(self, holding: Holding) -> None:
        self.seen.append(("obeys", holding.claim_name))

    async def evict(self, holding: Holding, reason: str) -> None:
        self.seen.append(("evict", holding.pod_name))

    def kill(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))
        if pid == 404:
            raise ProcessLookupError(pid)

    def add(self, host_pid: int | str, cgroup: str, *, pid: int = 7, lease: str = "") -> None:
        """A process in a cgroup, with the region of a lease mapped or not."""
        folder = self.proc / str(host_pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns" / "pid").symlink_to(f"pid:[{SPACE}]")
        (folder / "ns" / "time").symlink_to("time:[1]")
        (folder / "status").write_text(f"NSpid:\t{host_pid}\t{pid}\n")
        (folder / "stat").write_text(f"{host_pid} (x) S {'0 ' * 18}{START} 0\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        inode = self.allocations.region_path(lease).stat().st_ino if lease else 0
        maps = f"7f00-7f01 rw-s 0 00:01 {inode}  /usr/local/vgpu/usage/region\n"
        (folder / "maps").write_text(maps if lease else "")

    def watchdog(self, on_violation: OnViolation = OnViolation.REPORT) -> Watchdog:
        return Watchdog(
            self.driver,
            lambda: STATE,
            self.allocations,
            self,
            on_violation=on_violation,
            kill=self.kill,
            proc=self.proc,
        )

    def hold(self, held: Mapping[int, int], uuid: str = GPU_0) -> None:
        """What the driver counts: MiB by host PID."""
        self.driver.processes = {uuid: {pid: mib * MIB for pid, mib in held.items()}}


CGROUP = f"/kubepods/burstable/pod{POD}/0123abcd"
SYSTEMD = (
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"
    "/cri-containerd-0123abcd.scope"
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("cgroup", [CGROUP, SYSTEMD])
async def test_memory_that_passed_by_the_library_is_found_by_the_cgroup(
    world: World, cgroup: str
) -> None:
    world.add(100, cgroup)
    world.add(101, cgroup)
    world.hold({100: 3000, 101: 2000, 555: 9000})
    watchdog = world.watchdog()
    await watchdog.look()
    assert world.seen == []  # once may be memory that is just being freed
    await watchdog.look()
    await watchdog.look()
    assert world.seen == [("violated", "one")]
    assert world.sentences == [
        f"holds 5000 MiB of card {GPU_0}, 0 MiB of them by its own word; its limit is 4000 MiB"
    ]
    assert world.signals == []


async def test_where_pods_have_no_cgroups_the_mapped_region_tells(world: World) -> None:
    world.add(100, "/", lease="slot-2")
    world.hold({100: 5000})
    watchdog = world.watchdog()
    await watchdog.look()
    await watchdog.look()
    assert world.seen == [("violated", "two")]


async def test_a_pod_cannot_put_its_memory_on_another_pods_account(world: World) -> None:
    world.add(100, CGROUP, lease="slot-2")  # it got hold of a neighbour's region, somehow
    world.hold({100: 5000})
    watchdog = world.watchdog()
    await watchdog.look()
    await watchdog.look()
    assert world.seen == [("violated", "one")]


async def test_a_card_that_the_claim_has_no_share_of_is_not_its_to_use(world: World) -> None:
    world.add(100, CGROUP)
    world.hold({100: 500}, uuid=GPU_1)
    watchdog = world.watchdog()
    await watchdog.look()
    await watchdog.look()
    assert world.seen == [("violated", "one")]
    assert "its limit is 0 MiB" in world.sentences[0]


async def test_what_contexts_take_beyond_the_limit_is_no_violation(world: World) -> None:
    world.add(100, CGROUP)
    watchdog = world.watchdog()
    for _ in range(3):
        world.hold({100: LIMIT_MIB + 80})  # 2 % of the limit
        await watchdog.look()
    assert world.seen == []
    for _ in range(2):
        world.hold({100: LIMIT_MIB + 81})
        await watchdog.look()
    assert world.seen == [("violated", "one")]


async def test_a_claim_that_obeys_again_is_said_to_and_may_be_caught_again(world: World) -> None:
    world.add(100, CGROUP)
    watchdog = world.watchdog()
    for held in (5000, 5000, 4000, 5000, 4000, 5000, 5000):
        world.hold({100: held})
        await watchdog.look()
    assert world.seen == [("violated", "one"), ("obeys", "one"), ("violated", "one")]


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
    await watchdog.look()
    assert world.seen == [("violated", "one"), ("obeys", "one")]


async def test_an_eviction_is_asked_for_once(world: World) -> None:
    world.add(100, CGROUP)
    world.hold({100: 5000})
    watchdog = world.watchdog(OnViolation.EVICT)
    for _ in range(4):
        await watchdog.look()
    assert world.seen == [("violated", "one"), ("evict", "pod-of-one")]


async def test_a_driver_that_does_not_say_accuses_nobody(world: World) -> None:
    class Silent(ObedientDriver):
        async def process_memory(self) -> Mapping[str, Mapping[int, int]]:
            raise DriverUnavailable("NVML did not answer within 10 s")

    world.driver = Silent([a_driver_card()])
    with pytest.raises(DriverUnavailable):
        await world.watchdog().look()
    assert world.seen == []


def own(path: Path, slot: int, pid: int, *, start: int = START) -> None:
    """Give a slot to a process, as the library would."""
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
    world.add(1007, CGROUP, pid=7, lease="slot-1")
    world.add(1008, CGROUP, pid=8, lease="slot-1")
    world.hold({1007: 10, 1008: 10})
    await world.watchdog().look()
    assert (host_pid(region, 0), host_pid(region, 1)) == (1007, 1008)
    assert tell_host_pids(region, [1007, 1008], proc=world.proc) == 0  # nothing new


def test_a_slot_that_two_processes_may_own_is_left_alone(world: World) -> None:
    region = world.allocations.region_path("slot-1")
    own(region, 0, 7, start=0)
    world.add(1007, CGROUP, pid=7, lease="slot-1")
    world.add(2007, CGROUP, pid=7, lease="slot-1")
    assert tell_host_pids(region, [1007, 2007], proc=world.proc) == 0
    assert host_pid(region, 0) == 0
