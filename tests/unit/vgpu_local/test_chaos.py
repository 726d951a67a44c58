"""The campaign's parts that decide what a run is worth."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from builders import a_claim, an_allocated_device, an_allocation
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.quantity import MIB
from vgpu_api.v1alpha1 import ReservedFor, VGPUClaim, VGPUClaimStatus
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.chaos.supervisor import Supervisor
from vgpu_local.chaos.witness import Witness
from vgpu_local.chaos.workload import STAYING, script
from vgpu_local.daemon import Daemon
from vgpu_nodeagent.enforcement.page import DeviceLimit, create_page, grant

CARD = "GPU-0"


def test_the_script_of_a_seed_is_always_the_same() -> None:
    one, two, other = ([e.at for e in script(random.Random(s), lasts=10)] for s in (1, 1, 2))
    assert one == two != other


def test_what_stays_fits_wherever_it_is_put() -> None:
    """Twenty small pods fill two cards at most, by slots, memory or compute; there are six."""
    per_card = min(10, (16_384 - 2_000) // 2_000, (100 - 10) // 10)
    assert STAYING / per_card < 6 - 1


def claim(pod_uid: str, mib: int) -> VGPUClaim:
    status = VGPUClaimStatus(
        allocation=an_allocation(an_allocated_device(request="main", uuid=CARD, memory_mib=mib)),
        reserved_for=ReservedFor(pod_name="p", pod_uid=pod_uid),
        conditions=[],
    )
    return a_claim("c", status=status, metadata={"finalizers": [FINALIZER_IN_USE]})


def wrote(claim: VGPUClaim) -> WriteEvent:
    return WriteEvent("MODIFIED", "vgpuclaims.vgpu.dev", 1, orjson.dumps(claim.to_wire()))


def leave_record(
    folder: Path, *, pod_uid: str, mib: int, visible: str = CARD, pid: int = 1
) -> None:
    page = folder / f"{pod_uid}.main.{pid}.page"
    create_page(page, name="slot")
    grant(page, [DeviceLimit(CARD, mib * MIB, 0)], name="slot")
    page.with_suffix(".seen").write_text(f"4102444800.5\n{visible}\n")  # after every write


def test_a_container_that_saw_its_claims_grant_is_no_finding(tmp_path: Path) -> None:
    witness = Witness(tmp_path)
    witness.saw(wrote(claim("u1", 100)))
    leave_record(tmp_path, pod_uid="u1", mib=100)
    assert witness.verdicts() == []


@pytest.mark.parametrize(
    ("pod_uid", "mib", "visible"),
    [("u2", 100, CARD), ("u1", 101, CARD), ("u1", 100, "GPU-1")],
    ids=["another pod of the same name", "another limit", "another card"],
)
def test_a_container_with_anothers_grant_is_found(
    tmp_path: Path, pod_uid: str, mib: int, visible: str
) -> None:
    witness = Witness(tmp_path)
    witness.saw(wrote(claim("u1", 100)))
    leave_record(tmp_path, pod_uid=pod_uid, mib=mib, visible=visible)
    assert len(witness.verdicts()) == 1


def test_a_container_that_lives_when_its_cards_are_given_back_is_found(tmp_path: Path) -> None:
    witness = Witness(tmp_path)
    witness.saw(wrote(claim("u1", 100)))
    container = subprocess.Popen(["sleep", "60"], env={**os.environ, "POD_UID": "u1"})
    try:
        leave_record(tmp_path, pod_uid="u1", mib=100, pid=container.pid)
        witness.saw(wrote(a_claim("c")))
        assert "ran when the cards" in witness.findings[0]
    finally:
        container.kill()
        container.wait()


def died(tmp_path: Path, words: str) -> Supervisor:
    """A supervisor that has looked at a process which ended with these words."""
    daemon = Daemon(
        "d", [sys.executable, "-c", f"raise SystemExit({words!r})"], os.environ, tmp_path / "log"
    )
    daemon.start()
    daemon.wait(30)
    supervisor = Supervisor([daemon])
    supervisor.look()
    return supervisor


def test_a_process_that_dies_by_itself_is_found(tmp_path: Path) -> None:
    assert "boom" in died(tmp_path, "boom").findings[0]


def test_a_leader_that_ends_because_its_lease_is_lost_is_no_finding(tmp_path: Path) -> None:
    assert died(tmp_path, "LeaseLost: not renewed in time").findings == []
