"""The stand-in kubelet has DRA drivers prepare and unprepare claims as the real one does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from vgpu_api.resources import PODS, RESOURCE_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_local.kubelet.folders import NodeFolders, make_folders
from vgpu_local.kubelet.kubelet import Kubelet
from vgpu_local.kubelet.node import NodeShape
from vgpu_local.kubelet.pace import Pace
from vgpu_nodeagent.kubelet.api import dra_pb2 as dra
from vgpu_nodeagent.kubelet.api import dra_pb2_grpc as dra_grpc
from vgpu_nodeagent.kubelet.api import pluginregistration_pb2 as reg
from vgpu_nodeagent.kubelet.api import pluginregistration_pb2_grpc as reg_grpc

Json = dict[str, Any]
PLACE = {"namespace": "default"}


class Driver(dra_grpc.DRAPluginServicer, reg_grpc.RegistrationServicer):
    """A DRA driver of CDI devices that set a variable.

    Attributes:
        calls: The calls in order: verb and claim.
        refuses: Why it prepares and unprepares nothing, while set.
    """

    def __init__(self, folders: NodeFolders, name: str = "a") -> None:
        self.calls: list[tuple[str, str]] = []
        self.refuses = ""
        self.registered = asyncio.Event()
        self._folders = folders
        self._name = name
        self._server = grpc.aio.server()

    @property
    def _socket(self) -> Path:
        return self._folders.plugins_registry / f"{self._name}.sock"

    async def serve(self) -> None:
        dra_grpc.add_DRAPluginServicer_to_server(self, self._server)
        reg_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        self._socket.unlink(missing_ok=True)
        await self._server.stop(None)

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return reg.PluginInfo(type="DRAPlugin", name="ex.dev", endpoint=str(self._socket))

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.registered.set()
        return reg.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        (claim,) = request.claims
        self.calls.append(("prepare", claim.name))
        answer = dra.NodePrepareResourceResponse(error=self.refuses)
        if not self.refuses:
            edits = {"env": [f"GIVEN={claim.name}"]}
            device = {"name": claim.name, "containerEdits": edits}
            spec = {"cdiVersion": "0.6.0", "kind": "ex.dev/gpu", "devices": [device]}
            (self._folders.cdi / f"{claim.name}.json").write_text(json.dumps(spec))
            answer.devices.add(request_names=["main"], cdi_device_ids=[f"ex.dev/gpu={claim.name}"])
        return dra.NodePrepareResourcesResponse(claims={claim.uid: answer})

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        (claim,) = request.claims
        self.calls.append(("unprepare", claim.name))
        answer = dra.NodeUnprepareResourceResponse(error=self.refuses)
        return dra.NodeUnprepareResourcesResponse(claims={claim.uid: answer})


@pytest.fixture
async def kubelet(api: Api, tmp_path: Path) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(
        api,
        NodeShape("n1"),
        make_folders(tmp_path / "node"),
        environment={},
        pace=Pace(first_retry=0.05, retry=0.05, write_retry=0.05, gone_grace=0.0),
        prepares_claims=True,
    )
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def driver(kubelet: Kubelet) -> AsyncIterator[Driver]:
    driver = Driver(kubelet.folders)
    await driver.serve()
    async with asyncio.timeout(20):
        await driver.registered.wait()
    yield driver
    await driver.stop()


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for a condition that no event shows."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never held")


async def create(api: Api, name: str, *, is_reserved: bool = True) -> Json:
    """Create a bound pod and its claim, reserved for the pod or not."""
    made = await api.create(RESOURCE_CLAIMS, {"metadata": {"name": f"of-{name}", **PLACE}})
    container = {
        "name": "main",
        "image": "none",
        "resources": {"claims": [{"name": "gpu", "request": "main"}]},
    }
    spec = {
        "nodeName": "n1",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": f"of-{name}"}],
    }
    pod = await api.create(PODS, {"metadata": {"name": name, **PLACE}, "spec": spec})
    result = {"request": "main", "driver": "ex.dev", "pool": "n1", "device": "gpu-0"}
    status: Json = {"allocation": {"devices": {"results": [result]}}}
    if is_reserved:
        uid = pod["metadata"]["uid"]
        status["reservedFor"] = [{"resource": "pods", "name": name, "uid": uid}]
    patch = [{"op": "add", "path": "/status", "value": status}]
    await api.json_patch(
        RESOURCE_CLAIMS, f"of-{name}", patch, namespace="default", subresource="status"
    )
    return made


def given(kubelet: Kubelet, name: str) -> str:
    """Return the variable of the pod's container, or "" while it does not run."""
    try:
        return kubelet.environment("default", name, "main").get("GIVEN", "")
    except LookupError:
        return ""


async def gone(api: Api, name: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await api.get(PODS, name, namespace="default")
            except NotFound:
                return
            await asyncio.sleep(0.02)


async def test_a_claim_is_prepared_before_its_container_and_unprepared_after_it(
    api: Api, kubelet: Kubelet, driver: Driver
) -> None:
    claim = await create(api, "a")
    await eventually(lambda: given(kubelet, "a") == "of-a")
    assert driver.calls == [("prepare", "of-a")]
    assert claim["metadata"]["uid"] in kubelet.folders.claims_record.read_text()
    await api.delete(PODS, "a", namespace="default")
    await gone(api, "a")
    assert driver.calls == [("prepare", "of-a"), ("unprepare", "of-a")]
    assert claim["metadata"]["uid"] not in kubelet.folders.claims_record.read_text()


async def test_a_refusal_is_tried_again(api: Api, kubelet: Kubelet, driver: Driver) -> None:
    driver.refuses = "not yet"
    await create(api, "a")
    await eventually(lambda: len(driver.calls) > 1)
    assert given(kubelet, "a") == ""
    driver.refuses = ""
    await eventually(lambda: given(kubelet, "a") == "of-a")


async def test_a_claim_that_is_not_reserved_for_the_pod_is_not_prepared(
    api: Api, kubelet: Kubelet, driver: Driver
) -> None:
    await create(api, "a", is_reserved=False)
    await create(api, "b")
    await eventually(lambda: given(kubelet, "b") == "of-b")
    assert driver.calls == [("prepare", "of-b")]


async def test_a_forced_deletion_unprepares_too(api: Api, kubelet: Kubelet, driver: Driver) -> None:
    await create(api, "a")
    await eventually(lambda: given(kubelet, "a") == "of-a")
    await api.delete(PODS, "a", namespace="default", grace_s=0)
    await eventually(lambda: driver.calls[-1] == ("unprepare", "of-a"))


async def test_only_a_restarted_kubelet_asks_again_for_another_sandbox(
    api: Api, kubelet: Kubelet, driver: Driver
) -> None:
    await create(api, "a")
    await eventually(lambda: given(kubelet, "a") == "of-a")
    await kubelet.remake_sandbox("default", "a")
    await eventually(lambda: given(kubelet, "a") == "of-a")
    assert driver.calls == [("prepare", "of-a")]
    await kubelet.restart()
    await kubelet.remake_sandbox("default", "a")
    await eventually(lambda: driver.calls == [("prepare", "of-a")] * 2)


async def test_the_driver_that_registered_last_is_asked(
    api: Api, kubelet: Kubelet, driver: Driver
) -> None:
    newer = Driver(kubelet.folders, "b")
    await newer.serve()
    async with asyncio.timeout(20):
        await newer.registered.wait()
    await create(api, "a")
    await eventually(lambda: given(kubelet, "a") == "of-a")
    assert (driver.calls, newer.calls) == ([], [("prepare", "of-a")])
    await newer.stop()
    await api.delete(PODS, "a", namespace="default")
    await gone(api, "a")
    assert driver.calls == [("unprepare", "of-a")]


async def test_a_driver_that_starts_anew_in_its_place_is_registered_each_time(
    kubelet: Kubelet,
) -> None:
    """Between two looks, so that only the socket itself differs; its inode may be used again."""
    for _ in range(10):
        driver = Driver(kubelet.folders)
        await driver.serve()
        try:
            async with asyncio.timeout(10):
                await driver.registered.wait()
        finally:
            await driver.stop()


async def test_a_driver_that_cannot_take_the_answer_is_told_again(kubelet: Kubelet) -> None:
    class Busy(Driver):
        asked = 0

        async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
            self.asked += 1
            if self.asked == 1:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
            return await super().NotifyRegistrationStatus(request, context)

    driver = Busy(kubelet.folders)
    await driver.serve()
    async with asyncio.timeout(10):
        await driver.registered.wait()
    await driver.stop()
    assert driver.asked == 2
