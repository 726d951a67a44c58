"""ResourceClaims prepared for a kubelet that calls over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_bench import GPU_0
from agent_node import T4_MIB
from builders import a_pod, allocation_id
from dra_bench import (
    RESOURCE_CLAIM_UID,
    DraNode,
    a_claiming_pod,
    a_dra_node,
    a_given_claim,
    a_short_folder,
    serving,
)
from vgpu_api import dra
from vgpu_api.core.pod import Pod
from vgpu_api.quantity import MIB
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.cdi import Edits, SpecFolder
from vgpu_nodeagent.errors import KubeletUnavailable, Why
from vgpu_nodeagent.kubelet.api import dra_pb2
from vgpu_nodeagent.lifecycle.recovery import load_record
from vgpu_nodeagent.state.checkpoint import Checkpoint

OTHER_UID = "5f0c1f9e-0000-4000-8000-000000000002"


@pytest.fixture
def folder() -> Iterator[Path]:
    with a_short_folder() as folder:
        yield folder


@pytest.fixture
async def node(folder: Path) -> DraNode:
    return await a_dra_node(folder)


async def until(holds: Callable[[], bool], *, attempts: int = 1000) -> None:
    for _ in range(attempts):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


async def refusal(node: DraNode, **named: str) -> Why:
    """Prepare, which must be refused; return the reason that the kubelet shows."""
    async with node.served() as kubelet:
        answer = await kubelet.prepare(**named)
    assert list(answer.devices) == []
    assert node.bench.nothing_is_granted()
    assert not node.specs.exists() or list(node.specs.iterdir()) == []
    return Why(answer.error.partition(":")[0])


def spec_of(node: DraNode, device: dra_pb2.Device) -> dict[str, list[object]]:
    """Return the edits of a device's CDI spec, found as a runtime finds them."""
    (name,) = device.cdi_device_ids
    for path in node.specs.iterdir():
        spec = json.loads(path.read_text())
        for each in spec["devices"]:
            if f"{spec['kind']}={each['name']}" == name:
                edits: dict[str, list[object]] = each["containerEdits"]
                return edits
    raise AssertionError(f"no spec of {name}")


async def test_a_claim_that_the_vgpuclaim_names_gets_its_page_and_cdi_spec(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    async with node.served() as kubelet:
        answer = await kubelet.prepare()
    assert answer.error == ""
    (device,) = answer.devices
    assert (device.pool_name, device.device_name) == ("n1", GPU_0.lower())
    assert list(device.request_names) == ["main"]
    assert device.share_id == dra.share_id(allocation_id(), "main")
    page = node.pages()["main"]
    assert page.state is PageState.GRANT
    assert [(x.uuid, x.memory_bytes) for x in page.devices] == [(GPU_0, 1024 * MIB)]
    mounts = spec_of(node, device)["mounts"]
    inside = [m["containerPath"] for m in mounts if isinstance(m, dict)]
    assert {"/usr/local/vgpu/limits", "/usr/local/vgpu/usage"} <= set(inside)
    options = {m["containerPath"]: m["options"][0] for m in mounts if isinstance(m, dict)}
    assert options["/usr/local/vgpu/limits"] == "ro"
    assert options["/usr/local/vgpu/usage"] == "rw"


async def test_a_claim_made_from_a_template_is_found_by_the_pods_status(node: DraNode) -> None:
    pod = a_claiming_pod(claim="pod-1-vgpu-x7k2p", template=True)
    node.comes(pod, a_given_claim(pod))
    async with node.served() as kubelet:
        assert (await kubelet.prepare("pod-1-vgpu-x7k2p")).error == ""


async def test_each_container_has_a_limit_of_its_own(node: DraNode) -> None:
    pod = a_claiming_pod(containers={"a": "a", "b": "b", "web": None})
    node.comes(pod, a_given_claim(pod, requests={"a": 1024, "b": 2048}))
    async with node.served() as kubelet:
        answer = await kubelet.prepare()
    assert [list(each.request_names) for each in answer.devices] == [["a"], ["b"]]
    limits = {name: page.devices[0].memory_bytes // MIB for name, page in node.pages().items()}
    assert limits == {"a": 1024, "b": 2048}
    shares = [spec_of(node, each)["mounts"] for each in answer.devices]
    assert shares[0] != shares[1]


async def test_a_container_that_names_no_request_gets_all_of_its_claim(node: DraNode) -> None:
    pod = a_claiming_pod(containers={"main": ""})
    node.comes(pod, a_given_claim(pod))
    async with node.served() as kubelet:
        (device,) = (await kubelet.prepare()).devices
    assert list(device.request_names) == []
    assert spec_of(node, device)


async def test_the_second_answer_is_the_first_and_counts_nothing_twice(node: DraNode) -> None:
    """As after an answer that was lost: three quarters of a device, twice, fit on one."""
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod, memory_mib=T4_MIB * 3 // 4))
    async with node.served() as kubelet:
        first = await kubelet.prepare()
        assert await kubelet.prepare() == first
    assert first.error == ""
    assert len(node.bench.node.checkpoint.state.slot_allocations) == 1


async def test_the_claim_that_overcommits_a_device_is_refused(node: DraNode) -> None:
    """Fails without the sum at Prepare: nothing else checks the amounts of an allocated claim."""
    first, second = a_claiming_pod(), a_claiming_pod("pod-2", claim="other")
    node.comes(first, a_given_claim(first, memory_mib=T4_MIB // 2 + 1))
    node.comes(
        second,
        a_given_claim(
            second,
            memory_mib=T4_MIB // 2 + 1,
            name="c2",
            number=2,
            resource_claim_uid=OTHER_UID,
        ),
    )
    async with node.served() as kubelet:
        assert (await kubelet.prepare()).error == ""
        answer = await kubelet.prepare("other", OTHER_UID)
        assert answer.error.startswith("OverCapacity: claim default/c2 does not fit")
        assert await kubelet.unprepare() == ""
        assert (await kubelet.prepare("other", OTHER_UID)).error == ""


async def test_a_resource_claim_that_no_vgpuclaim_names_gets_nothing(node: DraNode) -> None:
    """A forged allocation: the ResourceClaim is allocated without a VGPUClaim in the ledger."""
    node.comes(a_claiming_pod())
    assert await refusal(node) is Why.NO_CLAIM


async def test_a_claim_of_another_uid_under_the_same_name_gets_nothing(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    assert await refusal(node, uid=OTHER_UID) is Why.RESOURCE_CLAIM_MISMATCH


async def test_a_claim_of_slots_is_not_given_through_a_resource_claim(node: DraNode) -> None:
    """Fails where a pod could have the claim's amounts twice, by slot and by share."""
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod, resource_claim_uid=""))
    assert await refusal(node) is Why.NO_CLAIM


async def test_a_claim_reserved_for_another_pod_gets_nothing(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod, reserved_for="uid-of-its-predecessor"))
    assert await refusal(node) is Why.WRONG_POD


async def test_two_pods_on_one_claim_get_nothing(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    node.comes(a_claiming_pod("pod-2"))
    assert await refusal(node) is Why.RESOURCE_CLAIM_SHARED


async def test_a_pod_that_joins_a_prepared_claim_is_reported(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet does not call the driver: it has prepared the claim for the first pod."""
    said: list[tuple[str, str]] = []

    def refused(pod: Pod, reason: str, message: str) -> None:
        said.append((pod.metadata.name, reason))

    monkeypatch.setattr(node.bench.said, "refusal", refused, raising=False)
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    async with node.served() as kubelet:
        assert (await kubelet.prepare()).error == ""
    node.comes(a_claiming_pod("pod-2", claim="another"))
    node.comes(a_claiming_pod("pod-3"))
    assert said == [("pod-3", "ResourceClaimShared")]


async def test_a_pod_that_is_not_bound_here_gets_nothing(node: DraNode) -> None:
    assert await refusal(node) is Why.POD_UNKNOWN


async def test_containers_that_share_a_request_get_nothing(node: DraNode) -> None:
    pod = a_claiming_pod(containers={"a": "a", "b": "a"})
    node.comes(pod, a_given_claim(pod, requests={"a": 1024}))
    assert await refusal(node) is Why.REQUEST_MISMATCH


async def test_what_is_on_its_way_is_waited_for_within_the_call(folder: Path) -> None:
    node = await a_dra_node(folder, patience_s=20)
    pod = a_claiming_pod()
    async with node.served() as kubelet:
        asking = asyncio.ensure_future(kubelet.prepare())
        await asyncio.sleep(0.05)
        node.comes(pod)
        await asyncio.sleep(0.05)
        assert not asking.done()
        node.bench.view.claims.added(a_given_claim(pod))
        assert (await asking).error == ""


async def test_a_call_that_the_kubelet_has_given_up_leaves_no_grant(folder: Path) -> None:
    node = await a_dra_node(folder, patience_s=0.5)
    pod = a_claiming_pod()
    node.comes(pod)
    async with node.served() as kubelet:
        with pytest.raises(Exception, match="DEADLINE_EXCEEDED"):
            await kubelet.prepare(within_s=0.1)
        node.bench.view.claims.added(a_given_claim(pod))
        await asyncio.sleep(0.6)
    assert node.bench.nothing_is_granted()


async def test_unprepare_closes_the_page_and_reports_the_release(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    async with node.served() as kubelet:
        await kubelet.prepare()
        assert await kubelet.unprepare() == ""
        assert node.bench.said.released_claims == [("c", allocation_id())]
        assert await kubelet.unprepare() == ""
        answer = await kubelet.prepare()
    assert answer.error.startswith("ClaimClosed:")
    assert node.bench.node.allocations.on_disk() == frozenset()


async def test_a_claim_that_was_never_prepared_is_unprepared_at_once(node: DraNode) -> None:
    async with node.served() as kubelet:
        assert await kubelet.unprepare("unknown", OTHER_UID) == ""


async def test_a_forced_deletion_frees_nothing_before_the_kubelet_unprepares(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    node.remembers(RESOURCE_CLAIM_UID)
    async with node.served() as kubelet:
        await kubelet.prepare()
        node.goes(pod)
        await node.bench.releases.sweep()
        assert node.pages()["main"].state is PageState.GRANT
        assert node.bench.said.released_claims == []
        assert await kubelet.unprepare() == ""
    assert node.bench.said.released_claims == [("c", allocation_id())]


async def test_a_record_of_the_kubelet_that_cannot_be_read_frees_nothing(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    node.remembered.mkdir()
    async with node.served() as kubelet:
        await kubelet.prepare()
    node.goes(pod)
    await node.bench.releases.sweep()
    assert node.bench.said.released_claims == []
    with pytest.raises(KubeletUnavailable):
        node.bench.node.kubelet.remembered({RESOURCE_CLAIM_UID})


async def test_a_claim_that_the_kubelet_has_forgotten_is_freed_with_its_pod(node: DraNode) -> None:
    """Somebody removed its record, so it will never unprepare; else the device is lost."""
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    node.remembers(OTHER_UID)
    async with node.served() as kubelet:
        await kubelet.prepare()
    its_folder = node.bench.kubelet_pods / pod.metadata.uid
    its_folder.mkdir(parents=True)
    node.goes(pod)
    await node.bench.releases.sweep()
    assert node.bench.said.released_claims == []
    its_folder.rmdir()
    await node.bench.releases.sweep()
    assert node.bench.said.released_claims == [("c", allocation_id())]


async def test_after_a_reboot_the_cdi_spec_is_written_again(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))
    async with node.served() as kubelet:
        first = await kubelet.prepare()
        for path in node.specs.iterdir():
            path.unlink()
        assert await kubelet.prepare() == first
        assert spec_of(node, first.devices[0])


async def restarted(node: DraNode) -> DraNode:
    """Return the node as the next agent serves it, after the first was killed."""
    folder = node.bench.kubelet.path.parent
    checkpoint = node.bench.node.checkpoint
    again = Checkpoint(folder / "slots.json")
    checkpoint.state = again.state
    await load_record(node.bench.node)
    return serving(node.bench, folder, instance="next-pod-uid")


async def test_an_agent_killed_between_page_and_spec_completes_both(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))

    def dies(specs: SpecFolder, name: str, edits: Edits) -> None:
        raise OSError(28, "No space left on device")

    async with node.served() as kubelet:
        with monkeypatch.context() as patched:
            patched.setattr(SpecFolder, "write", dies)
            answer = await kubelet.prepare()
        assert answer.error.startswith("StorageFailed: cannot write the grant: ")
    assert node.pages()["main"].state is PageState.GRANT
    assert node.bench.node.allocations.specs() == frozenset()
    after = await restarted(node)
    async with after.served() as kubelet:
        assert (await kubelet.prepare()).error == ""
        assert await kubelet.unprepare() == ""
    assert after.bench.node.allocations.on_disk() == frozenset()


async def test_a_full_disk_grants_nothing_and_is_overcome(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod))

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with node.served() as kubelet:
        with monkeypatch.context() as patched:
            patched.setattr("vgpu_nodeagent.state.checkpoint.write_durably", full)
            assert (await kubelet.prepare()).error.startswith("StorageFailed")
            assert node.bench.nothing_is_granted()
        assert (await kubelet.prepare()).error == ""


async def test_the_next_agent_knows_what_was_prepared(node: DraNode) -> None:
    pod = a_claiming_pod()
    node.comes(pod, a_given_claim(pod, memory_mib=T4_MIB))
    async with node.served() as kubelet:
        first = await kubelet.prepare()
    after = await restarted(node)
    async with after.served() as kubelet:
        assert await kubelet.prepare() == first
        assert await kubelet.unprepare() == ""
    assert after.bench.said.released_claims == [("c", allocation_id())]


async def test_a_lost_checkpoint_is_made_anew_from_pages_and_claims(node: DraNode) -> None:
    pod = a_claiming_pod(containers={"a": "a", "b": "b"})
    node.comes(pod, a_given_claim(pod, requests={"a": 1024, "b": 2048}))
    async with node.served() as kubelet:
        await kubelet.prepare()
    before = node.bench.node.checkpoint.state
    (node.bench.kubelet.path.parent / "slots.json").unlink()
    after = await restarted(node)
    state = after.bench.node.checkpoint.state
    assert state.claim_allocations == before.claim_allocations
    assert state.slot_allocations.keys() == before.slot_allocations.keys()
    async with after.served() as kubelet:
        assert await kubelet.unprepare() == ""
    assert after.bench.node.allocations.on_disk() == frozenset()


async def test_init_containers_that_run_again_are_opened_once_they_have_devices(
    node: DraNode,
) -> None:
    pod = a_claiming_pod(init={"prepare": "prepare"})
    amounts = {"prepare": 8192, "main": 1024}
    claim = a_given_claim(pod, requests=amounts, phases={"prepare": "Init"})
    node.comes(pod, claim)
    async with node.served() as kubelet:
        assert (await kubelet.prepare()).error == ""
        state = node.bench.node.checkpoint.state
        (share,) = (x.name for x in state.slot_allocations.values() if x.container == "prepare")
        done = {
            "name": "prepare",
            "containerID": "containerd://1",
            "state": {"terminated": {"exitCode": 0}},
        }
        running = {"phase": "Running", "initContainerStatuses": [done]}
        raw = {**pod.to_wire(), "status": {**pod.status.to_wire(), **running}}
        node.bench.view.pods.modified(Pod.model_validate(raw))
        await node.bench.releases.sweep()
        assert node.bench.node.allocations.content(share).state is PageState.CLOSED
        # A reboot: the kubelet prepares again, and the init containers run again.
        answer = await kubelet.prepare()
        assert answer.error.startswith("InitContainersEnded:")
        assert [word for word, _ in node.bench.said.init] == ["ended", "wanted"]
        # The operator allocates their devices again.
        allocation = claim.status.allocation
        assert allocation is not None
        again = allocation.model_copy(update={"init_round": 1})
        status = claim.status.model_copy(update={"allocation": again})
        refitted = claim.model_copy(update={"status": status})
        node.bench.view.claims.modified(refitted)
        runner = asyncio.ensure_future(node.preparation.run())
        await until(lambda: node.bench.node.allocations.content(share).state is PageState.GRANT)
        runner.cancel()
        assert (await kubelet.prepare()).error == ""


async def test_a_pod_that_ended_is_not_prepared(node: DraNode) -> None:
    pod = a_claiming_pod()
    ended = pod.model_copy(update={"status": a_pod(phase="Failed").status})
    node.comes(ended, a_given_claim(pod))
    assert await refusal(node) is Why.POD_UNKNOWN
