"""The parts of a campaign that decide if a run proves anything."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from builders import a_claim, a_request, an_allocated_device, an_allocation
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.chaos.grant_observer import GrantObserver
from vgpu_local.chaos.scenarios import STAYING
from vgpu_local.chaos.sightings import Sightings
from vgpu_local.chaos.succession import Succession
from vgpu_local.chaos.supervisor import Supervisor
from vgpu_local.chaos.workload import script
from vgpu_local.daemon import Daemon
from vgpu_nodeagent.enforcement.page import DeviceLimit, create_page, grant

DEVICE = "GPU-0"


def test_the_script_of_a_seed_is_always_the_same() -> None:
    one, two, other = ([e.at for e in script(random.Random(s), lasts=10)] for s in (1, 1, 2))
    assert one == two != other


def test_what_stays_fits_wherever_it_is_put() -> None:
    """Twenty small pods fill two devices at most, by slots, memory or compute; there are six."""
    per_device = min(10, (16_384 - 2_000) // 2_000, (100 - 10) // 10)
    assert STAYING / per_device < 6 - 1


def claim(
    pod_uid: str, mib: int, *, request: str = "main", wanted_mib: int | None = None
) -> VGPUClaim:
    """Return a pod's claim with this amount, and a changed spec if it wants another."""
    status = VGPUClaimStatus(
        allocation=an_allocation(an_allocated_device(request=request, uuid=DEVICE, memory_mib=mib)),
        reserved_for=ReservedFor(pod_name="p", pod_uid=pod_uid),
        conditions=[],
    )
    return a_claim(
        "c",
        requests=[a_request(name="main", memory=f"{wanted_mib or mib}Mi")],
        generation=1 if wanted_mib is None else 2,
        status=status,
        metadata={"finalizers": [FINALIZER_IN_USE]},
    )


def wrote(claim: VGPUClaim) -> WriteEvent:
    return WriteEvent("MODIFIED", "vgpuclaims.vgpu.dev", 1, orjson.dumps(claim.to_wire()))


def leave_record(
    folder: Path, *, pod_uid: str, mib: int, visible: str = DEVICE, pid: int = 1
) -> None:
    page = folder / f"{pod_uid}.main.{pid}.page"
    create_page(page, name="slot")
    grant(page, [DeviceLimit(DEVICE, mib * MIB, 0)], name="slot")
    page.with_suffix(".seen").write_text(f"4102444800.5\n{visible}\n")  # after every write


def test_a_container_that_saw_its_claims_grant_is_no_finding(tmp_path: Path) -> None:
    grant_observer = GrantObserver(tmp_path)
    grant_observer.saw(wrote(claim("u1", 100)))
    leave_record(tmp_path, pod_uid="u1", mib=100)
    assert grant_observer.verdicts() == []


@pytest.mark.parametrize(
    ("pod_uid", "mib", "visible"),
    [("u2", 100, DEVICE), ("u1", 101, DEVICE), ("u1", 100, "GPU-1")],
    ids=["another pod of the same name", "another limit", "another card"],
)
def test_a_container_with_anothers_grant_is_found(
    tmp_path: Path, pod_uid: str, mib: int, visible: str
) -> None:
    grant_observer = GrantObserver(tmp_path)
    grant_observer.saw(wrote(claim("u1", 100)))
    leave_record(tmp_path, pod_uid=pod_uid, mib=mib, visible=visible)
    assert len(grant_observer.verdicts()) == 1


@pytest.mark.parametrize(("wanted_mib", "findings"), [(80, 0), (100, 1), (120, 1)])
def test_a_container_of_a_claim_made_smaller_may_start_with_less(
    tmp_path: Path, wanted_mib: int, findings: int
) -> None:
    grant_observer = GrantObserver(tmp_path)
    grant_observer.saw(wrote(claim("u1", 100, wanted_mib=wanted_mib)))
    leave_record(tmp_path, pod_uid="u1", mib=80)
    assert len(grant_observer.verdicts()) == findings


@pytest.mark.parametrize("without_a_request", [a_claim("c"), claim("u1", 100, request="other")])
def test_a_container_that_lives_when_its_devices_are_given_back_is_found(
    tmp_path: Path, without_a_request: VGPUClaim
) -> None:
    grant_observer = GrantObserver(tmp_path)
    grant_observer.saw(wrote(claim("u1", 100)))
    container = subprocess.Popen(["sleep", "60"], env={**os.environ, "POD_UID": "u1"})
    try:
        leave_record(tmp_path, pod_uid="u1", mib=100, pid=container.pid)
        grant_observer.saw(wrote(claim("u1", 100)))
        assert grant_observer.findings == []
        grant_observer.saw(wrote(without_a_request))
        assert "ran when the devices" in grant_observer.findings[0]
    finally:
        container.kill()
        container.wait()


def a_daemon(tmp_path: Path, program: str) -> Daemon:
    return Daemon("d", [sys.executable, "-c", program], os.environ, tmp_path / "log")


def died(tmp_path: Path, words: str, *, without_room: bool = False) -> Supervisor:
    """Return a supervisor that has checked a process which ended with this output.

    Args:
        tmp_path: For the process.
        words: Its last.
        without_room: Whether its disk was filled.
    """
    daemon = a_daemon(tmp_path, f"raise SystemExit({words!r})")
    daemon.start()
    daemon.wait(30)
    supervisor = Supervisor([daemon])
    if without_room:
        supervisor.has_no_room(daemon.name)
    supervisor.look()
    return supervisor


def test_a_process_that_dies_by_itself_is_found(tmp_path: Path) -> None:
    assert "boom" in died(tmp_path, "boom").findings[0]


def test_a_leader_that_ends_because_its_lease_is_lost_is_found(tmp_path: Path) -> None:
    """It should have followed instead."""
    assert "LeaseLost" in died(tmp_path, "LeaseLost: not renewed in time").findings[0]


@pytest.mark.parametrize(("without_room", "findings"), [(True, 0), (False, 1)])
def test_want_of_room_excuses_only_a_process_whose_disk_was_filled(
    tmp_path: Path, *, without_room: bool, findings: int
) -> None:
    words = "OSError: [Errno 28] No space left on device"
    assert len(died(tmp_path, words, without_room=without_room).findings) == findings


def test_what_a_former_process_said_excuses_no_later_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("OSError: [Errno 28] No space left on device\n")
    assert "boom" in died(tmp_path, "boom", without_room=True).findings[0]


@pytest.mark.parametrize(("code", "findings"), [(0, 0), (3, 1)])
def test_a_process_that_was_asked_to_end_must_end_in_order(
    tmp_path: Path, code: int, findings: int
) -> None:
    program = (
        "import signal, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    daemon = a_daemon(tmp_path, program)
    daemon.start()
    until(lambda: "ready" in daemon.tail())
    supervisor = Supervisor([daemon])
    try:
        assert supervisor.ask_to_end("d", away_s=0)
        assert not supervisor.is_up("d")
        assert not supervisor.ask_to_end("d", away_s=0)
        until(lambda: supervisor.look() or daemon.log.read_text().count("ready") == 2)
        assert len(supervisor.findings) == findings
        assert supervisor.is_up("d")
    finally:
        daemon.stop(grace=0)


def until(holds: Callable[[], object]) -> None:
    """Look until the condition holds; the test's own time limit ends an endless wait."""
    while not holds():
        time.sleep(0.01)


def a_pod(uid: str, **status: str) -> bytes:
    metadata = {"name": "p", "namespace": "default", "uid": uid}
    return orjson.dumps({"metadata": metadata, "spec": {}, "status": status})


def test_a_pod_made_anew_is_seen_though_its_predecessor_is_told_gone_later() -> None:
    sightings = Sightings("default")
    sightings.saw(WriteEvent("ADDED", "pods", 1, a_pod("u1", phase="Running")))
    sightings.saw(WriteEvent("ADDED", "pods", 2, a_pod("u2", phase="Pending")))
    sightings.saw(WriteEvent("DELETED", "pods", 3, a_pod("u1")))
    assert sightings.phases() == {"p": "Pending"}
    sightings.saw(WriteEvent("DELETED", "pods", 4, a_pod("u2")))
    assert sightings.pod("p") is None


def a_lease(holder: str) -> WriteEvent:
    metadata = {"name": "vgpu-operator", "namespace": "vgpu-system"}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 3}
    raw = orjson.dumps({"metadata": metadata, "spec": spec})
    return WriteEvent("MODIFIED", "leases.coordination.k8s.io", 1, raw)


@pytest.mark.parametrize(
    ("held_by", "waited_s", "early"),
    [
        (["a", "a", "b"], 3.7, False),
        (["a", "a", "b"], 3.5, True),
        (["a", "", "b"], 0.1, False),
        (["a", "a", "a"], 0.1, False),
    ],
    ids=["in time", "before late writes have landed", "released", "renewed"],
)
def test_a_leader_that_came_too_early_is_found(
    held_by: list[str], waited_s: float, early: bool
) -> None:
    now = 100.0
    succession = Succession(clock=lambda: now)
    for holder in held_by:
        succession.saw(a_lease(holder))
        now += waited_s
    assert bool(succession.findings) == early
