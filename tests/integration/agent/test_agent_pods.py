"""The agent starts or refuses containers through a kubelet, as pods see it."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from agent_node import (
    GPU_0,
    GPU_1,
    T4_MIB,
    AgentNode,
    a_driver_device,
    a_slot_container,
    allocate,
    an_agent_node,
    claim_is,
    condition,
    create_claim,
    create_pod,
    pod_is,
    pod_is_refused,
    until,
)
from vgpu_api.resources import EVENTS, NODES, PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_local.kubelet.node import register_node
from vgpu_nodeagent.config import LimitBackendName
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.page import read_page
from vgpu_nodeagent.enforcement.region import read_region

SECOND = "00000000-0000-0000-0000-000000000002"


@pytest.fixture
async def node(api: Api, tmp_path: Path) -> AsyncIterator[AgentNode]:
    devices = [a_driver_device(), a_driver_device(GPU_1, 1)]
    async with an_agent_node(api, tmp_path, devices=devices) as node:
        yield node


def a_device(
    memory: str = "8Gi", *, cores: int = 0, uuid: str = GPU_0, request: str = "main"
) -> dict[str, object]:
    return {"request": request, "uuid": uuid, "memory": memory, "cores": cores, "index": 0}


def a_request(name: str = "main", **rest: object) -> dict[str, object]:
    return {"name": name, **rest}


def environment(node: AgentNode, pod: str, container: str = "main") -> dict[str, str]:
    return dict(node.kubelet.environment("default", pod, container))


def page_of(node: AgentNode, pod: str, container: str = "main") -> Path:
    return Path(environment(node, pod, container)["VGPU_LIMIT_PAGE"])


async def test_a_container_gets_what_its_claim_says(api: Api, node: AgentNode) -> None:
    claim = await create_claim(api, "c1", requests=[a_request(memory="8Gi", cores=30)])
    pod = await create_pod(api, "p1")
    await allocate(api, claim, pod, devices=[a_device(cores=30)])
    await pod_is(api, "p1", "Running")
    seen = environment(node, "p1")
    assert seen["NVIDIA_VISIBLE_DEVICES"] == GPU_0
    assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == "8192M"
    assert seen["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert Path(seen["LD_PRELOAD"]).name.startswith("libvgpu-")
    page = read_page(Path(seen["VGPU_LIMIT_PAGE"]))
    assert page.state is PageState.GRANT
    assert [(d.uuid, d.memory_bytes, d.cores) for d in page.devices] == [(GPU_0, 8 << 30, 30)]
    assert read_region(Path(seen["VGPU_USAGE_REGION"])) == ()
    prepared = condition(await claim_is(api, "c1", "Prepared"), "Prepared")
    assert prepared["reason"] == "LimitsInPlace"


async def test_a_driver_that_shall_keep_limits_and_cannot_lets_no_container_start(
    api: Api, node: AgentNode, tmp_path: Path
) -> None:
    await node.stop_agent()
    node.config = replace(
        node.config, limit_backend=LimitBackendName.DRIVER, host_root=tmp_path / "host"
    )
    await node.start_agent()
    claim = await create_claim(api, "c1")
    pod = await create_pod(api, "p1")
    cgroups = tmp_path / "host/sys/fs/cgroup"
    cgroup = cgroups / f"kubepods/besteffort/pod{pod['metadata']['uid']}"
    cgroup.mkdir(parents=True)
    (cgroups / "cgroup.controllers").touch()
    await allocate(api, claim, pod)
    assert "limits no memory by cgroup" in await pod_is_refused(api, "p1")
    prepared = condition(await claim_is(api, "c1", "Prepared", "False"), "Prepared")
    assert prepared["reason"] == "LimitsUnsupported"

    node.driver.memory_limits = {}
    await pod_is(api, "p1", "Running")
    assert node.driver.memory_limits == {cgroup: {GPU_0: 8 << 30}}
    # with only a memory limit, the driver enforces it
    assert "LD_PRELOAD" not in environment(node, "p1")


async def test_without_the_drivers_files_a_container_is_refused_and_starts_once_they_are_there(
    api: Api, node: AgentNode, tmp_path: Path
) -> None:
    await node.stop_agent()
    node.config = replace(node.config, driver_roots=(PurePosixPath(tmp_path, "driver"),))
    await node.start_agent()
    claim = await create_claim(api, "c1")
    pod = await create_pod(api, "p1")
    await allocate(api, claim, pod)
    said = await pod_is_refused(api, "p1")
    assert f"is installed below {tmp_path}/driver: install the driver" in said
    prepared = condition(await claim_is(api, "c1", "Prepared", "False"), "Prepared")
    assert prepared["reason"] == "DriverFilesMissing"

    folder = tmp_path / "driver/usr/lib64"
    folder.mkdir(parents=True)
    shutil.copyfile(sys.executable, folder / "libcuda.so.1")
    await pod_is(api, "p1", "Running")
    assert environment(node, "p1")["NVIDIA_VISIBLE_DEVICES"] == "void"


async def test_without_a_core_share_there_is_no_sm_limit_in_the_environment(
    api: Api, node: AgentNode
) -> None:
    claim = await create_claim(api, "c1", requests=[a_request(memory="4Gi")])
    await allocate(api, claim, await create_pod(api, "p1"), devices=[a_device("4Gi")])
    await pod_is(api, "p1", "Running")
    assert environment(node, "p1")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096M"
    assert "CUDA_DEVICE_SM_LIMIT" not in environment(node, "p1")


async def test_a_whole_device_runs_without_the_library(api: Api, node: AgentNode) -> None:
    claim = await create_claim(api, "c1", requests=[a_request(cores=100)])
    devices = [a_device(f"{T4_MIB}Mi", cores=100)]
    await allocate(api, claim, await create_pod(api, "p1"), devices=devices)
    await pod_is(api, "p1", "Running")
    assert "LD_PRELOAD" not in environment(node, "p1")
    assert environment(node, "p1")["NVIDIA_VISIBLE_DEVICES"] == GPU_0
    assert read_page(page_of(node, "p1")).state is PageState.GRANT


async def test_a_container_with_two_devices_gets_both_in_order(api: Api, node: AgentNode) -> None:
    claim = await create_claim(api, "c1", requests=[a_request(count=2, memory="2Gi")])
    pod = await create_pod(api, "p1", a_slot_container(slots=2))
    devices = [a_device("2Gi", uuid=GPU_1), a_device("2Gi", uuid=GPU_0)]
    await allocate(api, claim, pod, devices=devices)
    await pod_is(api, "p1", "Running")
    seen = environment(node, "p1")
    assert seen["NVIDIA_VISIBLE_DEVICES"] == f"{GPU_1},{GPU_0}"
    assert seen["CUDA_DEVICE_MEMORY_LIMIT_1"] == "2048M"


async def test_each_container_of_a_pod_gets_its_own_limits(api: Api, node: AgentNode) -> None:
    requests = [a_request("one", memory="1Gi"), a_request("two", memory="3Gi")]
    claim = await create_claim(api, "c1", requests=requests)
    pod = await create_pod(api, "p1", a_slot_container("one"), a_slot_container("two"))
    devices = [a_device("1Gi", request="one"), a_device("3Gi", request="two", uuid=GPU_1)]
    await allocate(api, claim, pod, devices=devices)
    await pod_is(api, "p1", "Running")
    assert environment(node, "p1", "one")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024M"
    assert environment(node, "p1", "two")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3072M"


async def test_an_init_container_and_its_successor_on_the_same_slot_get_each_their_own(
    api: Api, node: AgentNode
) -> None:
    requests = [
        a_request("prepare", phase="Init", memory="10Gi"),
        a_request("main", memory="1Gi"),
    ]
    claim = await create_claim(api, "c1", requests=requests)
    echo = 'echo "$CUDA_DEVICE_MEMORY_LIMIT_0"'
    pod = await create_pod(api, "p1", initContainers=[a_slot_container("prepare", echo)])
    devices = [a_device("10Gi", request="prepare"), a_device("1Gi")]
    await allocate(api, claim, pod, devices=devices)
    await pod_is(api, "p1", "Running")
    assert node.kubelet.logs("default", "p1", "prepare").endswith("10240M\n")
    assert environment(node, "p1")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024M"


async def test_when_init_containers_have_ended_their_page_denies_and_the_claim_says_so(
    api: Api, node: AgentNode
) -> None:
    """Another pod gets their devices then, although the first pod still runs."""
    requests = [a_request("prepare", phase="Init", memory="15Gi"), a_request(memory="1Gi")]
    claim = await create_claim(api, "c1", requests=requests)
    init = a_slot_container("prepare", 'echo "$VGPU_LIMIT_PAGE"')
    pod = await create_pod(api, "p1", initContainers=[init])
    devices = [a_device("15Gi", request="prepare"), a_device("1Gi")]
    await allocate(api, claim, pod, devices=devices, allocation_id=SECOND)
    await pod_is(api, "p1", "Running")
    ended = (await claim_is(api, "c1", "InitReleased"))["status"]["initReleased"]
    assert (ended["allocationID"], ended["round"]) == (SECOND, 0)
    page = Path(node.kubelet.logs("default", "p1", "prepare").splitlines()[-1])
    assert read_page(page).state is PageState.CLOSED
    assert read_page(page_of(node, "p1")).state is PageState.GRANT
    other = await create_claim(api, "c2", requests=[a_request(memory="15Gi")])
    await allocate(api, other, await create_pod(api, "p2"), devices=[a_device("15Gi")])
    await pod_is(api, "p2", "Running")


async def test_an_init_container_whose_slot_nobody_takes_over_starts_too(
    api: Api, node: AgentNode
) -> None:
    requests = [a_request("prepare", phase="Init", memory="1Gi")]
    claim = await create_claim(api, "c1", requests=requests)
    pod = await create_pod(
        api,
        "p1",
        a_slot_container("main", "true", slots=0),
        initContainers=[a_slot_container("prepare", "true")],
    )
    await allocate(api, claim, pod, devices=[a_device("1Gi", request="prepare")])
    await pod_is(api, "p1", "Succeeded")


async def test_without_a_claim_nothing_starts_and_everybody_is_told_why(
    api: Api, node: AgentNode
) -> None:
    pod = await create_pod(api, "p1")
    sentence = "no claim on this node is reserved for pod default/p1"
    assert sentence in await pod_is_refused(api, "p1")
    events = (await api.list(EVENTS, namespace="default")).items
    ours = [e for e in events if e["source"]["component"] == "vgpu-nodeagent"]
    assert [(e["reason"], e["message"]) for e in ours] == [("ClaimNotFound", sentence)]
    assert ours[0]["involvedObject"]["uid"] == pod["metadata"]["uid"]


async def test_a_grant_that_appears_later_starts_the_pod_at_once(api: Api, node: AgentNode) -> None:
    pod = await create_pod(api, "p1")
    await pod_is_refused(api, "p1")
    claim = await create_claim(api, "c1")
    await allocate(api, claim, pod)
    # This kubelet would retry by itself only after half a minute; touching the pod makes it look at
    # once.
    await pod_is(api, "p1", "Running")
    assert (
        "vgpu.dev/poke"
        in (await api.get(PODS, "p1", namespace="default"))["metadata"]["annotations"]
    )


async def test_a_pod_made_anew_under_the_same_name_does_not_get_its_predecessors_claim(
    api: Api, node: AgentNode
) -> None:
    """Fails without the comparison of UIDs at PreStart."""
    claim = await create_claim(api, "c1")
    first = await create_pod(api, "p1", node=None)
    await allocate(api, claim, first)
    await api.delete(PODS, "p1", namespace="default", grace_s=0)
    second = await create_pod(api, "p1")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    message = await pod_is_refused(api, "p1")
    assert first["metadata"]["uid"] in message
    assert second["metadata"]["uid"] in message


async def second_is_refused(api: Api) -> str:
    """Run a pod on 10 GiB of device 0, try as much again, and return why the second is refused."""
    for name in ("1", "2"):
        claim = await create_claim(api, f"c{name}", requests=[a_request(memory="10Gi")])
        pod = await create_pod(api, f"p{name}")
        await allocate(api, claim, pod, devices=[a_device("10Gi")])
        if name == "1":
            await pod_is(api, "p1", "Running")
    return await pod_is_refused(api, "p2")


async def test_two_claims_that_together_exceed_a_device_do_not_both_start(
    api: Api, node: AgentNode
) -> None:
    """Fails without the sum over the agent's own grants at PreStart."""
    message = await second_is_refused(api)
    assert f"claim default/c2 does not fit on GPU {GPU_0}: memory {T4_MIB} MiB" in message
    refused = await claim_is(api, "c2", "Prepared", "False")
    assert condition(refused, "Prepared")["reason"] == "OverCapacity"


async def test_the_sum_counts_a_claims_init_and_app_requests_by_their_peak(
    api: Api, node: AgentNode
) -> None:
    requests = [a_request("prepare", phase="Init", memory="9Gi"), a_request(memory="7Gi")]
    for name in ("1", "2"):
        claim = await create_claim(api, f"c{name}", requests=requests)
        init = [a_slot_container("prepare", "true")]
        pod = await create_pod(api, f"p{name}", initContainers=init)
        devices = [
            a_device("9Gi", request="prepare", uuid=GPU_0 if name == "1" else GPU_1),
            a_device("7Gi", uuid=GPU_0),
        ]
        await allocate(api, claim, pod, devices=devices)
        await pod_is(api, f"p{name}", "Running")  # 9 GiB + 7 GiB = all 16 GiB of device 0


async def test_an_init_container_beside_a_sidecar_is_summed_with_it(
    api: Api, node: AgentNode
) -> None:
    requests = [
        a_request("side", memory="11Gi"),
        a_request("prepare", phase="Init", memory="11Gi"),
    ]
    claim = await create_claim(api, "c1", requests=requests)
    side = {**a_slot_container("side"), "restartPolicy": "Always"}
    init = [side, a_slot_container("prepare", "true")]
    pod = await create_pod(api, "p1", a_slot_container("main", slots=0), initContainers=init)
    devices = [a_device("11Gi", request="side"), a_device("11Gi", request="prepare")]
    await allocate(api, claim, pod, devices=devices)
    assert f"does not fit on GPU {GPU_0}" in await pod_is_refused(api, "p1")


async def test_capacity_that_becomes_free_starts_the_pod_that_waits_for_it(
    api: Api, node: AgentNode
) -> None:
    await second_is_refused(api)
    await api.delete(PODS, "p1", namespace="default", grace_s=1)
    await pod_is(api, "p2", "Running")


async def test_a_device_that_is_not_on_this_node_is_refused(api: Api, node: AgentNode) -> None:
    claim = await create_claim(api, "c1")
    await allocate(api, claim, await create_pod(api, "p1"), devices=[a_device(uuid="GPU-else")])
    assert "GPU GPU-else is not on this node" in await pod_is_refused(api, "p1")


async def test_a_container_that_the_claim_does_not_name_is_refused(
    api: Api, node: AgentNode
) -> None:
    claim = await create_claim(api, "c1", requests=[a_request("other", memory="1Gi")])
    pod = await create_pod(api, "p1")
    await allocate(api, claim, pod, devices=[a_device("1Gi", request="other")])
    assert "has no request named 'main'" in await pod_is_refused(api, "p1")


async def test_a_request_of_the_wrong_phase_is_refused(api: Api, node: AgentNode) -> None:
    claim = await create_claim(api, "c1", requests=[a_request(phase="Init", memory="1Gi")])
    await allocate(api, claim, await create_pod(api, "p1"), devices=[a_device("1Gi")])
    assert "phase Init" in await pod_is_refused(api, "p1")


async def test_a_limit_page_cut_in_half_stops_the_start_with_its_name_and_heals(
    api: Api, node: AgentNode
) -> None:
    pod = await create_pod(api, "p1")
    await pod_is_refused(api, "p1")
    (page,) = (node.config.state_dir / "slots").glob("*/limits")
    content = page.read_bytes()
    page.write_bytes(content[: len(content) // 2])
    await allocate(api, await create_claim(api, "c1"), pod)

    def names_the_page(
        pod: dict[str, dict[str, list[dict[str, dict[str, dict[str, str]]]]]],
    ) -> bool:
        (status,) = pod["status"]["containerStatuses"]
        return "it was truncated" in status["state"].get("waiting", {}).get("message", "")

    message = await until(api, PODS, "p1", names_the_page)
    assert str(page) in str(message)
    assert read_page(page).state is PageState.DENY
    await api.merge_patch(
        PODS, "p1", {"metadata": {"annotations": {"try": "again"}}}, namespace="default"
    )
    await pod_is(api, "p1", "Running")


async def test_a_finished_pod_frees_its_slot_and_names_the_allocation(
    api: Api, node: AgentNode
) -> None:
    claim = await create_claim(api, "c1")
    pod = await create_pod(api, "p1")
    await allocate(api, claim, pod, allocation_id=SECOND)
    await pod_is(api, "p1", "Running")
    page = page_of(node, "p1")
    assert list(node.config.cdi_dir.glob("*.json"))
    mounted = page.parent.parent.parent / "mounted"
    mounted.hardlink_to(page)  # a container's bind mount keeps the page after the folder is removed
    await api.delete(PODS, "p1", namespace="default", grace_s=1)
    claim = await claim_is(api, "c1", "Released")
    assert read_page(mounted).state is PageState.CLOSED
    assert claim["status"]["released"]["allocationID"] == SECOND
    assert not list(node.config.cdi_dir.glob("*.json"))
    assert not page.parent.exists()


async def test_a_pod_that_ends_by_itself_is_released_too(api: Api, node: AgentNode) -> None:
    claim = await create_claim(api, "c1")
    await allocate(api, claim, await create_pod(api, "p1", a_slot_container(script="true")))
    await pod_is(api, "p1", "Succeeded")
    await claim_is(api, "c1", "Released")


async def test_a_reservation_for_a_pod_that_is_not_bound_yet_is_left_alone(
    api: Api, node: AgentNode
) -> None:
    waiting = await create_claim(api, "c1")
    await allocate(api, waiting, await create_pod(api, "p1", node=None))
    other = await create_claim(api, "c2", requests=[a_request(memory="1Gi")])
    pod = await create_pod(api, "p2", a_slot_container(script="true"))
    await allocate(api, other, pod, devices=[a_device("1Gi")])
    await claim_is(api, "c2", "Released")
    claim = await api.get(VGPU_CLAIMS, "c1", namespace="default")
    assert condition(claim, "Released") == {}


async def test_a_restarted_container_keeps_its_grant(api: Api, node: AgentNode) -> None:
    claim = await create_claim(api, "c1")
    pod = await create_pod(api, "p1", restartPolicy="Always")
    await allocate(api, claim, pod)
    await pod_is(api, "p1", "Running")
    before = environment(node, "p1")["VGPU_LIMIT_PAGE"]
    await node.kubelet.kill_container("default", "p1", "main")
    await until(
        api,
        PODS,
        "p1",
        lambda p: (
            p["status"]["containerStatuses"][0]["restartCount"] == 1
            and "running" in p["status"]["containerStatuses"][0]["state"]
        ),
    )
    assert environment(node, "p1")["VGPU_LIMIT_PAGE"] == before


async def test_many_pods_at_once_get_each_exactly_their_own(api: Api, node: AgentNode) -> None:
    async def start(number: int) -> None:
        size = f"{number + 1}Gi"
        claim = await create_claim(api, f"c{number}", requests=[a_request(memory=size)])
        pod = await create_pod(api, f"p{number}")
        uuid = GPU_0 if number < 3 else GPU_1
        await allocate(api, claim, pod, devices=[a_device(size, uuid=uuid)])
        await pod_is(api, f"p{number}", "Running")

    await asyncio.gather(*(start(number) for number in range(5)))
    for number in range(5):
        seen = environment(node, f"p{number}")
        assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{(number + 1) * 1024}M"


async def test_a_node_registered_anew_does_not_over_grant_what_still_runs_on_it(
    api: Api, node: AgentNode
) -> None:
    """The operator frees a deleted node's devices; the agent's records on disk still count them."""
    first = await create_claim(api, "c1", requests=[a_request(memory="10Gi")])
    await allocate(api, first, await create_pod(api, "p1"), devices=[a_device("10Gi")])
    await pod_is(api, "p1", "Running")
    await api.delete(NODES, "n1")
    await register_node(api, node.kubelet.shape)
    await node.kubelet.restart()
    await node.stop_agent()
    await node.start_agent()
    await api.merge_patch(
        VGPU_CLAIMS,
        "c1",
        {"status": {"allocation": None, "reservedFor": None}},
        namespace="default",
        subresource="status",
    )
    second = await create_claim(api, "c2", requests=[a_request(memory="10Gi")])
    await allocate(api, second, await create_pod(api, "p2"), devices=[a_device("10Gi")])
    assert "10240 MiB in use here" in await pod_is_refused(api, "p2")
    await api.delete(PODS, "p1", namespace="default", grace_s=1)
    await pod_is(api, "p2", "Running")
