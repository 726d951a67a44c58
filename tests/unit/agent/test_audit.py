"""An audit is silent while all records agree, and names each disagreement."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_bench import Bench, a_bench, a_bound_pod, a_claim_for
from agent_node import GPU_0
from vgpu_api.effective import Use
from vgpu_api.quantity import MIB
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.discovery.drivers.base import DeviceUsage, MigInstance
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.lifecycle.audit import findings, gather
from vgpu_nodeagent.lifecycle.audit_socket import USAGE, AuditSocket, query
from vgpu_nodeagent.reporting.usage import ContainerUse, Usage
from vgpu_nodeagent.state.claim_instances import ClaimInstance
from vgpu_nodeagent.state.slots import SlotState


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """Return an agent with one claim in use."""
    bench = await a_bench(tmp_path)
    pod = a_bound_pod()
    bench.view.pods.added(pod)
    bench.view.claims.added(a_claim_for(pod))
    await bench.start(pod, "slot-0")
    return bench


def lease_of(bench: Bench) -> str:
    (name,) = bench.node.checkpoint.state.slot_allocations
    return name


def commit(bench: Bench, **changes: Any) -> None:
    bench.node.checkpoint.commit(replace(bench.node.checkpoint.state, **changes))


def hold(bench: Bench, **changes: Any) -> None:
    (uid, claim_allocation) = next(iter(bench.node.checkpoint.state.claim_allocations.items()))
    commit(bench, claim_allocations={uid: replace(claim_allocation, **changes)})


def forget_lease(bench: Bench) -> None:
    commit(bench, slot_allocations={})


def lose_spec(bench: Bench) -> None:
    bench.node.allocations._specs.remove(lease_of(bench))


def damage_page(bench: Bench) -> None:
    os.truncate(bench.node.allocations.region_path(lease_of(bench)).parents[1] / "limits", 10)


def raise_page(bench: Bench) -> None:
    bench.node.allocations.resize(lease_of(bench), [DeviceLimit(GPU_0, 2048 * MIB, 0)])


def forget_by_kubelet(bench: Bench) -> None:
    bench.kubelet.forgets("slot-0")


def dispute(bench: Bench) -> None:
    slot_allocation = bench.node.checkpoint.state.slot_allocations[lease_of(bench)]
    commit(
        bench, slot_allocations={slot_allocation.name: replace(slot_allocation, container="other")}
    )


def lose_claim(bench: Bench) -> None:
    bench.view.claims.deleted(ObjectIdentity("default", "c", "uid-of-c"))


def decide_anew(bench: Bench) -> None:
    hold(bench, allocation_id="another")


def count_less(bench: Bench) -> None:
    hold(bench, use={GPU_0: Use(512, 0, 1)})


def give_too_much(bench: Bench) -> None:
    hold(bench, use={GPU_0: Use(20_000, 0, 1)})


def lose_instance(bench: Bench) -> None:
    claim_instance = ClaimInstance(
        GPU_0, MigInstance("1g.5gb", 0, 1, uuid="MIG-gone"), "uid-of-c", "a"
    )
    commit(bench, claim_instances={claim_instance.key: claim_instance})


def shut_with_spec(bench: Bench) -> None:
    slot_allocation = lease_of(bench)
    path = bench.node.allocations._specs._path(slot_allocation)
    kept = path.read_bytes()
    bench.node.allocations.shut(slot_allocation)
    path.write_bytes(kept)


async def test_a_record_that_the_kubelet_keeps_of_a_pod_that_is_gone_is_no_finding(
    bench: Bench,
) -> None:
    pod = a_bound_pod("pod-2")
    bench.kubelet.holds(pod, "slot-1", "slot-1-former")
    assert findings(gather(bench.node)) == []
    bench.view.pods.added(pod)
    (found,) = findings(gather(bench.node))
    assert (found.reason, found.subject) == ("LeaseForgotten", "slot-1-former")


async def test_records_that_agree_are_no_finding(bench: Bench) -> None:
    assert findings(gather(bench.node)) == []


async def test_an_idle_node_is_no_finding(tmp_path: Path) -> None:
    assert findings(gather((await a_bench(tmp_path)).node)) == []


@pytest.mark.parametrize(
    ("breaks", "reasons"),
    [
        (forget_lease, {"LeaseUnknown", "LeaseForgotten"}),
        (lose_spec, {"SpecMissing"}),
        (damage_page, {"PageDamaged"}),
        (raise_page, {"PageExceeds"}),
        (forget_by_kubelet, {"LeaseStale"}),
        (dispute, {"LeaseDisputed"}),
        (lose_claim, {"ClaimMissing"}),
        (decide_anew, {"AllocationDiffers"}),
        (count_less, {"AmountsDiffer", "PageExceeds"}),
        (give_too_much, {"AmountsDiffer", "Overcommitted"}),
        (lose_instance, {"InstanceMissing"}),
        (shut_with_spec, {"SpecLeft"}),
    ],
)
async def test_two_records_that_disagree_are_found(
    bench: Bench, breaks: Callable[[Bench], None], reasons: set[str]
) -> None:
    breaks(bench)
    assert {finding.reason for finding in findings(gather(bench.node))} == reasons


async def test_a_lease_whose_folder_is_gone_is_found(bench: Bench) -> None:
    slot_allocation = lease_of(bench)
    state = bench.node.checkpoint.state
    bench.node.allocations.close(slot_allocation)
    assert bench.node.checkpoint.state == state != SlotState()
    assert [finding.reason for finding in findings(gather(bench.node))] == ["PageMissing"]


@pytest.fixture
def socket(bench: Bench, tmp_path: Path) -> AuditSocket:
    return AuditSocket(bench.node, tmp_path / "s", between_s=0.0)


async def test_an_agent_answers_on_a_socket_of_roots_alone(
    bench: Bench, socket: AuditSocket, tmp_path: Path
) -> None:
    lose_spec(bench)
    async with await socket.listen():
        answer = await query(tmp_path / "s")
    assert (answer["node"], answer["leases"], answer["claims"]) == ("n1", 1, 1)
    (found,) = answer["findings"]
    assert (found["reason"], found["subject"]) == ("SpecMissing", lease_of(bench))
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


async def test_an_agent_answers_with_its_last_reading(bench: Bench, tmp_path: Path) -> None:
    use = ContainerUse(
        namespace="d", pod="p", container="c", claim="k", number=0, uuid="GPU-0",
        memory_limit=2048, memory_used=1024, memory_peak=None, cores_limit=0.5, cores_used=None,
        denied=3, throttled_s=1.5,
    )  # fmt: skip
    reading = Usage(devices={"GPU-0": DeviceUsage(memory_mib=7, cores=40)}, containers=(use,))
    socket = AuditSocket(bench.node, tmp_path / "s", reading=SimpleNamespace(usage=reading))
    async with await socket.listen():
        answer = await query(tmp_path / "s", USAGE)
    assert answer["devices"] == {"GPU-0": {"memory_mib": 7, "cores": 40}}
    (shown,) = answer["containers"]
    assert (shown["claim"], shown["memory_used"], shown["cores_used"]) == ("k", 1024, None)


async def test_what_a_killed_agent_left_of_its_socket_is_in_nobodys_way(
    socket: AuditSocket, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "s")
    async with await socket.listen():
        assert (await query(tmp_path / "s"))["findings"] == []


async def test_an_agent_that_ends_hangs_up_on_whoever_it_still_answers(
    bench: Bench, tmp_path: Path
) -> None:
    """From Python 3.12 on a stopping server waits for its clients, which delays the next agent."""
    lose_spec(bench)  # a finding is checked again, an hour later
    socket = AuditSocket(bench.node, tmp_path / "s", between_s=3600.0)
    serving = asyncio.create_task(socket.run())
    await asyncio.sleep(0.05)
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    await asyncio.sleep(0.01)
    serving.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(serving, return_exceptions=True)
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(OSError, match="refused"):
        await query(tmp_path / "s")


async def test_what_is_under_way_between_two_looks_is_no_finding(
    bench: Bench, tmp_path: Path
) -> None:
    state = bench.node.checkpoint.state
    forget_lease(bench)
    socket = AuditSocket(bench.node, tmp_path / "s", between_s=0.05)
    asyncio.get_running_loop().call_later(0.01, lambda: bench.node.checkpoint.commit(state))
    assert (await socket.audit())["findings"] == []


async def test_a_kubelet_whose_record_cannot_be_read_is_said(
    bench: Bench, socket: AuditSocket
) -> None:
    bench.node.kubelet.checkpoint.write_text("{")
    assert "is not JSON" in (await socket.audit())["error"]
