from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from vgpu_api.resources import EVENTS, NODES, PODS
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_local.apiserver import ApiServer
from vgpu_local.apiserver.faults import Fault
from vgpu_local.kubelet.folders import make_folders
from vgpu_local.kubelet.kubelet import Kubelet
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.kubelet.pace import Pace

if TYPE_CHECKING:
    from conftest import Plugin

RESOURCE = "ex.dev/gpu"
Json = dict[str, Any]


@pytest.fixture
async def kubelet(api: Api, tmp_path: Path) -> AsyncIterator[Kubelet]:
    pace = Pace(first_retry=0.05, retry=30, first_restart=0.05, last_restart=0.1, write_retry=0.05)
    kubelet = Kubelet(
        api,
        NodeShape("n1"),
        make_folders(tmp_path / "node"),
        environment={"FROM_IMAGE": "yes"},
        pace=pace,
    )
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def plugin(api: Api, kubelet: Kubelet, make_plugin: Callable[..., Any]) -> Plugin:
    plugin = make_plugin(kubelet.folders)
    await plugin.serve()
    await plugin.register()
    await node_offers(api, "4")
    return plugin


async def until(api: Api, resource: Any, name: str, holds: Callable[[Json], bool]) -> Json:
    """Return the object as soon as it satisfies `holds`."""
    namespace = "default" if resource is PODS else None
    async with asyncio.timeout(20):
        listing = await api.list(resource, namespace=namespace)
        for item in listing.items:
            if item["metadata"]["name"] == name and holds(item):
                return item
        stream = api.watch(resource, resource_version=listing.resource_version, namespace=namespace)
        async with aclosing(stream) as events:
            async for event in events:
                item = event["object"]
                named = item["metadata"].get("name") == name and event["type"] != "BOOKMARK"
                if named and holds(item):
                    return item
    raise AssertionError("the watch ended")


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for a condition that no event shows."""
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never held")


async def node_offers(api: Api, count: str) -> Json:
    def offers(node: Json) -> bool:
        return node.get("status", {}).get("allocatable", {}).get(RESOURCE) == count

    return await until(api, NODES, "n1", offers)


async def pod_is(api: Api, name: str, phase: str) -> Json:
    return await until(api, PODS, name, lambda pod: pod["status"].get("phase") == phase)


async def pod_waits(api: Api, name: str, reason: str) -> str:
    def waiting(pod: Json) -> Json:
        (status,) = pod["status"].get("containerStatuses") or [{}]
        found: Json = status.get("state", {}).get("waiting", {})
        return found

    pod = await until(api, PODS, name, lambda pod: waiting(pod).get("reason") == reason)
    return str(waiting(pod).get("message", ""))


def a_container(name: str = "main", script: str = "", slots: int = 1, **rest: Any) -> Json:
    limits = {"resources": {"limits": {RESOURCE: str(slots)}}} if slots else {}
    command = {"command": ["sh", "-c", script]} if script else {}
    return {"name": name, "image": "none", **limits, **command, **rest}


async def create_pod(api: Api, name: str, *containers: Json, **spec: Any) -> Json:
    return await api.create(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": "n1",
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": list(containers) or [a_container()],
                **spec,
            },
        },
    )


async def annotate(api: Api, name: str) -> None:
    await api.merge_patch(
        PODS, name, {"metadata": {"annotations": {"touched": "yes"}}}, namespace="default"
    )


async def test_the_node_shows_what_the_plugin_offers_and_how_much_of_it_is_healthy(
    api: Api, plugin: Plugin
):
    plugin.set_health("slot-0", "Unhealthy")
    node = await node_offers(api, "3")
    assert node["status"]["capacity"][RESOURCE] == "4"
    assert {"type": "Ready", "status": "True"}.items() <= node["status"]["conditions"][0].items()


async def test_a_plugin_of_another_version_is_turned_away(plugin: Plugin):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await plugin.register(version="v1alpha1")
    assert 'requested API version "v1alpha1" is not supported' in refused.value.details()


async def test_a_plugin_that_does_not_serve_yet_cannot_register(
    kubelet: Kubelet, make_plugin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vgpu_local.kubelet.plugins.DIAL_TIMEOUT", 0.2)
    with pytest.raises(grpc.aio.AioRpcError, match="failed to dial device plugin"):
        await make_plugin(kubelet.folders).register()


async def test_the_container_gets_what_prestart_wrote_for_it(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    await create_pod(
        api, "p", a_container(script="echo $FROM_IMAGE $FROM_ALLOCATE $GRANT $SLOTS", slots=2)
    )
    pod = await pod_is(api, "p", "Succeeded")
    (ids,) = plugin.allocated
    assert kubelet.logs("default", "p", "main") == f"yes lease-1 lease-1 {','.join(ids)}\n"
    assert plugin.started == [ids]
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")


async def test_podresources_shows_one_entry_per_device_already_at_prestart(
    api: Api, plugin: Plugin
):
    await create_pod(api, "p", a_container(slots=2), a_container("other", slots=0))
    await pod_is(api, "p", "Running")
    assert plugin.holders == [[("p", "main"), ("p", "main")]]
    (pod,) = await plugin.pods()
    assert [(c.name, [list(d.device_ids) for d in c.devices]) for c in pod.containers] == [
        ("main", [[i] for i in plugin.allocated[0]]),
        ("other", []),
    ]


async def test_the_checkpoint_names_pod_container_and_answer_before_the_start(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    plugin.refuse_start = "not yet"
    made = await create_pod(api, "p")
    await pod_waits(api, "p", "CreateContainerConfigError")
    (entry,) = json.loads(kubelet.folders.checkpoint.read_text())["Data"]["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"]) == (made["metadata"]["uid"], "main")
    assert entry["DeviceIDs"] == {"-1": plugin.allocated[0]}


async def test_a_refused_prestart_is_shown_and_retried_as_soon_as_the_pod_is_touched(
    api: Api, plugin: Plugin
):
    plugin.refuse_start = "no grant yet"
    await create_pod(api, "p")
    message = await pod_waits(api, "p", "CreateContainerConfigError")
    assert message == (
        "device plugin PreStartContainer rpc failed with err: "
        "rpc error: code = FailedPrecondition desc = no grant yet"
    )
    await eventually(lambda: len(plugin.started) == 2)  # the retry comes at once
    plugin.refuse_start = ""
    await annotate(api, "p")
    await pod_is(api, "p", "Running")  # well before the next retry, 30 s later
    events = await api.list(EVENTS, namespace="default")
    assert f"Error: {message}" in {event["message"] for event in events.items}


async def test_a_cdi_name_without_a_spec_starts_nothing(api: Api, plugin: Plugin):
    plugin.withhold = True
    await create_pod(api, "p")
    message = await pod_waits(api, "p", "CreateContainerError")
    assert message.endswith("unresolvable CDI devices ex.dev/gpu=lease-1")
    plugin.withhold = False
    await annotate(api, "p")
    await pod_is(api, "p", "Running")


@pytest.mark.parametrize(
    ("slots", "refuse", "why"),
    [
        (5, "", "requested number of devices unavailable for ex.dev/gpu"),
        (1, "no", "rpc error: code = FailedPrecondition desc = no, which is unexpected"),
    ],
)
async def test_a_pod_that_cannot_be_given_devices_fails(
    api: Api, plugin: Plugin, slots: int, refuse: str, why: str
):
    plugin.refuse_allocate = refuse
    await create_pod(api, "p", a_container(slots=slots))
    pod = await pod_is(api, "p", "Failed")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert why in pod["status"]["message"]


async def test_a_resource_that_no_plugin_ever_registered_is_admitted_without_asking_anyone(
    api: Api, kubelet: Kubelet
):
    await create_pod(api, "p", a_container(script="echo $GRANT."))
    await pod_is(api, "p", "Succeeded")
    assert kubelet.logs("default", "p", "main") == ".\n"


async def test_devices_of_an_ended_pod_are_free_again(api: Api, plugin: Plugin):
    for name in ("a", "b"):
        await create_pod(api, name, a_container(script="true", slots=4))
        await pod_is(api, name, "Succeeded")
    assert plugin.allocated == [sorted(plugin.health)] * 2


async def test_an_init_containers_slot_goes_to_the_next_container_and_a_sidecar_keeps_its_own(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    inits = [
        a_container("init", "echo $GRANT"),
        a_container("side", restartPolicy="Always"),
    ]
    await create_pod(api, "p", a_container(script="echo $GRANT"), initContainers=inits)
    pod = await pod_is(api, "p", "Succeeded")
    init, side, main = plugin.allocated
    assert init == side != main
    assert plugin.started == [init, side, main]
    # The init container is never listed: its slot shows under the container that comes after it.
    assert plugin.holders == [[("p", "side")], [("p", "side")], [("p", "main")]]
    assert kubelet.logs("default", "p", "init") == "lease-1\n"
    assert kubelet.logs("default", "p", "main") == "lease-3\n"
    statuses = pod["status"]["initContainerStatuses"]
    assert [s["state"]["terminated"]["exitCode"] for s in statuses] == [0, 143]


async def test_a_container_that_fails_is_restarted_through_prestart(api: Api, plugin: Plugin):
    await create_pod(api, "p", a_container(script="exit 3"), restartPolicy="OnFailure")

    def restarted(pod: Json) -> bool:
        (status,) = pod["status"].get("containerStatuses") or [{}]
        return bool(status.get("restartCount", 0) >= 2)

    pod = await until(api, PODS, "p", restarted)
    (status,) = pod["status"]["containerStatuses"]
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert len(plugin.allocated) == 1
    assert len(plugin.started) >= 3


async def test_between_a_kubelet_restart_and_the_next_registration_containers_start_unasked(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    await create_pod(api, "p", restartPolicy="Always")
    await pod_is(api, "p", "Running")
    await kubelet.restart()
    assert not (kubelet.folders.device_plugins / "plugin.sock").exists()
    assert kubelet.folders.checkpoint.exists()
    await node_offers(api, "0")
    await kubelet.exec("default", "p", "main", ["true"])  # the container has survived
    await kubelet.kill_container("default", "p", "main")

    def restarted(pod: Json) -> bool:
        status = pod["status"]["containerStatuses"][0]
        return status["restartCount"] == 1 and "running" in status["state"]

    await until(api, PODS, "p", restarted)
    assert len(plugin.started) == 1


async def test_a_stopped_plugin_leaves_capacity_but_nothing_to_allocate_and_starts_fail_closed(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    await create_pod(api, "p", restartPolicy="Always")
    await pod_is(api, "p", "Running")
    await plugin.stop()
    node = await node_offers(api, "0")
    assert node["status"]["capacity"][RESOURCE] == "4"
    await kubelet.kill_container("default", "p", "main")
    message = await pod_waits(api, "p", "CreateContainerConfigError")
    assert message.endswith("endpoint {plugin.sock} has been stopped")


async def gone(api: Api, name: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await api.get(PODS, name, namespace="default")
            except NotFound:
                return
            await asyncio.sleep(0.02)


async def test_a_deleted_pod_gets_its_grace_and_then_its_object_goes(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await create_pod(api, "p", a_container(script=script), terminationGracePeriodSeconds=20)
    await pod_is(api, "p", "Running")
    await eventually(lambda: "up" in kubelet.logs("default", "p", "main"))
    await api.delete(PODS, "p", namespace="default")
    await gone(api, "p")
    assert kubelet.logs("default", "p", "main") == "up\nbye\n"


async def test_a_pods_object_goes_though_its_removal_met_a_conflict_first(
    server: ApiServer, api: Api, kubelet: Kubelet, plugin: Plugin, tmp_path: Path
):
    may_end = tmp_path / "may-end"
    script = f"trap 'until [ -e {may_end} ]; do sleep 0.05; done; exit 0' TERM; echo up; "
    script += "while :; do sleep 0.05; done"
    await create_pod(api, "p", a_container(script=script), terminationGracePeriodSeconds=20)
    await pod_is(api, "p", "Running")
    await eventually(lambda: "up" in kubelet.logs("default", "p", "main"))
    await api.delete(PODS, "p", namespace="default")
    conflict = Fault(action="status", verb="delete", resource="pods", code=409)
    number = server.faults.add(conflict)
    may_end.touch()
    await gone(api, "p")
    assert server.faults.count(number) == 1


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def pids_of(kubelet: Kubelet, name: str) -> list[int]:
    await eventually(lambda: len(kubelet.logs("default", name, "main").split()) == 2)
    return [int(pid) for pid in kubelet.logs("default", name, "main").split()]


@pytest.mark.parametrize("how", ["deaf", "force", "kubelet stops"])
async def test_nothing_of_a_container_survives_it(
    api: Api, kubelet: Kubelet, plugin: Plugin, how: str
):
    script = "trap '' TERM; sleep 100 & echo $! $$$$; while :; do sleep 0.05; done"
    await create_pod(api, "p", a_container(script=script))
    await pod_is(api, "p", "Running")
    pids = await pids_of(kubelet, "p")
    assert all(alive(pid) for pid in pids)
    if how == "kubelet stops":
        await kubelet.stop()
    else:
        grace = 0 if how == "force" else None
        await api.delete(PODS, "p", namespace="default", grace_s=grace)
        await gone(api, "p")
    await eventually(lambda: not any(alive(pid) for pid in pids))


async def test_exec_runs_in_the_containers_environment(api: Api, kubelet: Kubelet, plugin: Plugin):
    await create_pod(api, "p")
    await pod_is(api, "p", "Running")
    result = await kubelet.exec(
        "default", "p", "main", ["sh", "-c", "echo $GRANT $MORE; exit 7"], environment={"MORE": "x"}
    )
    assert (result.exit_code, result.stdout) == (7, "lease-1 x\n")


async def test_pods_start_beside_each_other_while_one_prestart_hangs(api: Api, plugin: Plugin):
    plugin.gate = gate = asyncio.Event()
    await create_pod(api, "held")
    await eventually(lambda: len(plugin.started) == 1)
    plugin.gate = None
    await create_pod(api, "free", a_container(script="true"))
    await pod_is(api, "free", "Succeeded")
    gate.set()
    await pod_is(api, "held", "Running")


async def test_a_pod_deleted_while_its_prestart_hangs_goes_without_having_run(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    plugin.gate = asyncio.Event()
    await create_pod(api, "p", a_container(script="echo started"))
    await eventually(lambda: len(plugin.started) == 1)
    await api.delete(PODS, "p", namespace="default")
    await gone(api, "p")
    assert not list((kubelet.folders.root / "logs").rglob("*.log"))


async def test_a_kubelet_restart_while_a_prestart_hangs_does_not_lose_the_pod(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    plugin.gate = asyncio.Event()
    await create_pod(api, "p")
    await eventually(lambda: len(plugin.started) == 1)
    plugin.write_specs(plugin.allocated[0])
    await kubelet.restart()
    await pod_is(api, "p", "Running")  # not asked for, like every start before the plugin is back


async def test_while_the_runtime_is_away_starts_fail_after_prestart_and_containers_run_on(
    api: Api, kubelet: Kubelet, plugin: Plugin
):
    await create_pod(api, "runs")
    await pod_is(api, "runs", "Running")
    away = asyncio.ensure_future(kubelet.restart_runtime(1.0))
    await create_pod(api, "comes")

    def refused(pod: Json) -> bool:
        (status,) = pod["status"].get("containerStatuses") or [{}]
        waiting = status.get("state", {}).get("waiting", {})
        return bool(waiting.get("reason") == "CreateContainerError")

    await until(api, PODS, "comes", refused)
    asked = len(plugin.started)
    assert asked >= 2
    await kubelet.exec("default", "runs", "main", ["true"])
    await away
    touched = {"metadata": {"annotations": {"touched": "now"}}}
    await api.merge_patch(PODS, "comes", touched, namespace="default")  # tried again at once
    await pod_is(api, "comes", "Running")
    assert len(plugin.started) > asked
