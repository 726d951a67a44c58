"""Audits: silent while all records agree, and each disagreement by its name."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_bench import Bench, a_bench, a_bound_pod, a_claim_for
from agent_node import GPU_0
from vgpu_api.effective import Use
from vgpu_api.quantity import MIB
from vgpu_client.reflector import ObjectIdentity
from vgpu_nodeagent.audit_command import main
from vgpu_nodeagent.discovery.drivers.base import DeviceUsage, MigInstance
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.kubelet.audit import findings, gather
from vgpu_nodeagent.kubelet.audit_socket import USAGE, AuditSocket, query
from vgpu_nodeagent.reporting.usage import ContainerUse, Usage
from vgpu_nodeagent.state.claim_instances import ClaimInstance
from vgpu_nodeagent.state.slots import SlotState


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """One claim in use."""
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
    socket = AuditSocket(bench.node, tmp_path / "s", usage=lambda: reading)
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
    """From Python 3.12 on the end of a server waits for its clients; the next agent waits, too."""
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
    bench.node.kubelet_checkpoint.write_text("{")
    assert "is not JSON" in (await socket.audit())["error"]


FOUND = {"reason": "SpecMissing", "subject": "slot-1-a", "message": "no CDI spec"}
CLEAN = {"node": "n1", "leases": 2, "claims": 1, "findings": []}


def a_kubectl(**answers: Any) -> Callable[[Sequence[str]], str]:
    """Nodes by name, and what their agents answer: a document, or an error."""

    def run(arguments: Sequence[str]) -> str:
        if arguments[0] == "get":
            chosen = [a.partition("=")[2] for a in arguments if a.startswith("spec.nodeName=")]
            return json.dumps(
                {
                    "items": [
                        {
                            "metadata": {"name": f"agent-{node}"},
                            "spec": {"nodeName": node},
                            "status": {"phase": "Running"},
                        }
                        for node in answers
                        if not chosen or node in chosen
                    ]
                }
            )
        assert arguments[0] == "exec"
        assert arguments[-3:] == ["--", "vgpu-nodeagent", "audit"]
        answer = answers[arguments[3].removeprefix("agent-")]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer)

    return run


def test_nodes_that_agree_are_named_and_the_status_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], kubectl=a_kubectl(n1=CLEAN)) == 0
    assert capsys.readouterr().out == "n1: all records agree (1 claims, 2 leases)\n"


def test_a_disagreement_is_shown_and_the_status_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {**CLEAN, "node": "n2", "findings": [FOUND]}
    assert main([], kubectl=a_kubectl(n2=wrong, n1=CLEAN)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "n1: all records agree (1 claims, 2 leases)",
        "n2: 1 disagreements (1 claims, 2 leases)",
        "  SpecMissing slot-1-a: no CDI spec",
    ]


def test_an_agent_that_cannot_be_asked_makes_the_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = subprocess.CalledProcessError(1, "kubectl", stderr="Forbidden: pods/exec\n")
    assert main(["-o", "json"], kubectl=a_kubectl(n1=CLEAN, n2=refused)) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown == [CLEAN, {"node": "n2", "error": "Forbidden: pods/exec"}]


def test_one_node_alone_may_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--node", "n1"], kubectl=a_kubectl(n1=CLEAN, n2=CLEAN)) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["--node", "n9"], kubectl=a_kubectl(n1=CLEAN)) == 2
    assert "no agent runs on node n9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stderr", "says"),
    [
        (
            'E1123 18:41:43.702206   10990 memcache.go:265] "x"\nrefused -\n a port?\n',
            "refused - a port?",
        ),
        (
            'E1123 18:41:43.702206   10990 memcache.go:265] "x"\n',
            'E1123 18:41:43.702206 10990 memcache.go:265] "x"',
        ),
        ("a\x1b[2Jb\n", "a\\x1b[2Jb"),
    ],
)
def test_what_kubectl_logs_is_left_out_of_its_error(
    capsys: pytest.CaptureFixture[str], stderr: str, says: str
) -> None:
    def refusing(arguments: Sequence[str]) -> str:
        raise subprocess.CalledProcessError(1, "kubectl", stderr=stderr)

    assert main([], kubectl=refusing) == 2
    assert capsys.readouterr().err == f"kubectl vgpu audit: {says}\n"


def test_without_kubectl_the_audit_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([]) == 2
    assert capsys.readouterr().err == "kubectl vgpu audit: kubectl is not on the PATH\n"


def test_ctrl_c_ends_an_audit_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: Sequence[str]) -> str:
        raise KeyboardInterrupt

    assert main([], kubectl=interrupted) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("node", "status"), [("refused", 2), ("disagrees", 1)])
def test_a_refused_list_of_kubectl_is_no_answer_and_an_agents_findings_are(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    node: str,
    status: int,
) -> None:
    """Both come as JSON with status 1: kubectl prints an empty list before its error."""
    pods = a_kubectl(disagrees=None)(["get"])
    wrong = json.dumps({**CLEAN, "findings": [FOUND]})
    program = tmp_path / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *nodeName=refused*) echo \'{{"items": []}}\'; echo forbidden >&2; exit 1;;\n'
        f"get*) echo '{pods}';;\n"
        f"*) echo '{wrong}'; exit 1; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["--node", node]) == status
    said = capsys.readouterr()
    assert ("forbidden" in said.err, "SpecMissing" in said.out) == (status == 2, status == 1)
