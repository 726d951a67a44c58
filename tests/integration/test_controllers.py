"""The leader's Kopf handlers on an API server make the right writes and end cleanly."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from vgpu_api.resources import CONFIG_MAPS, EVENTS, MUTATING_WEBHOOKS, SECRETS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import NotFound
from vgpu_client.recorder import Recorder
from vgpu_client.transport import Object
from vgpu_operator.certificates import names
from vgpu_operator.certificates.issuing import read_bundle
from vgpu_operator.certificates.parts import keeper_of
from vgpu_operator.config import OperatorConfig, parse
from vgpu_operator.controllers import certificates
from vgpu_operator.controllers.controllers import Controllers

if TYPE_CHECKING:
    from conftest import RunningCluster

ISSUING = (
    "--certificates=secrets",
    "--service-name=vgpu-extender",
    "--advertise-address=127.0.0.1",
)
WRONG = "nvidia: {defaultCores: 101}"


@pytest.fixture
def config(cluster: RunningCluster, namespace: str) -> OperatorConfig:
    return parse([f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace}"], {})


class EndedLease:
    """A lease that has expired."""

    def remaining_s(self) -> float:
        """Return 0, because no time is left for a write."""
        return 0.0


@asynccontextmanager
async def leading(api: Api, config: OperatorConfig) -> AsyncIterator[None]:
    """Run the handlers as in a leading replica; `api` may write for as long as it leads."""
    recorder = Recorder(api, "vgpu-operator", clock=Clock(api))
    controllers = Controllers(config, recorder, keeper_of(api, config))
    before = threads()
    running = [asyncio.create_task(each) for each in (controllers.run(), recorder.run())]
    try:
        yield
        assert not any(task.done() for task in running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert threads() == before


def threads() -> int:
    """Return the number of the handlers' threads."""
    return [thread.name for thread in threading.enumerate()].count("controllers")


async def configure(api: Api, namespace: str, name: str, text: str) -> None:
    metadata = {"name": name, "namespace": namespace}
    await api.create(CONFIG_MAPS, {"metadata": metadata, "data": {"config.yaml": text}})


async def events(api: Api, namespace: str) -> dict[str, Object]:
    """Return the events of a namespace by the object they are about."""
    found = await api.list(EVENTS, namespace=namespace)
    return {event["involvedObject"]["name"]: event for event in found.items}


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


async def test_a_wrong_configuration_has_an_event_whenever_it_was_written(
    api: Api, namespace: str, config: OperatorConfig
) -> None:
    await configure(api, namespace, "vgpu-config-before", WRONG)
    await configure(api, namespace, "vgpu-config-in-order", "nvidia: {defaultCores: 20}")
    await configure(api, namespace, "others", WRONG)
    async with leading(api, config):

        async def both() -> bool:
            return {"vgpu-config-before", "vgpu-config-later"} <= set(await events(api, namespace))

        await configure(api, namespace, "vgpu-config-later", WRONG)
        await until(both)
    found = await events(api, namespace)
    assert set(found) == {"vgpu-config-before", "vgpu-config-later"}
    event = found["vgpu-config-later"]
    assert (event["type"], event["reason"]) == ("Warning", "ConfigMapInvalid")
    assert "nvidia.defaultCores: Invalid value: 101" in event["message"]
    assert event["source"]["component"] == "vgpu-operator"


async def test_a_replica_whose_lease_has_ended_writes_nothing(
    api: Api, namespace: str, config: OperatorConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vgpu_client.recorder")
    await configure(api, namespace, "vgpu-config-wrong", WRONG)

    async def tried() -> bool:
        return "event of vgpu-config-wrong not written" in caplog.text

    async with leading(api.within(EndedLease()), config):
        await until(tried)
    assert await events(api, namespace) == {}


async def test_a_reset_bundle_is_repaired_soon(
    api: Api,
    namespace: str,
    cluster: RunningCluster,
    webhook: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next regular check would come long after the test has timed out."""
    monkeypatch.setattr(certificates, "AGAIN_S", 3600.0)
    arguments = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace}", *ISSUING]
    for name in (
        names.AUTHORITY_SECRET,
        names.WEBHOOK_SECRET,
        names.EXTENDER_SECRET,
        names.SCHEDULER_SECRET,
    ):
        await api.create(SECRETS, {"metadata": {"name": name, "namespace": namespace}})

    async def bundle() -> str:
        found = await api.get(MUTATING_WEBHOOKS, names.WEBHOOK_CONFIGURATIONS)
        text: str = found["webhooks"][0]["clientConfig"].get("caBundle", "")
        return text

    async def published() -> bool:
        return bool(await bundle())

    async with leading(api, parse(arguments, {})):

        async def issued() -> bool:
            stored = await api.get(SECRETS, names.WEBHOOK_SECRET, namespace=namespace)
            return bool(stored.get("data", {}).get("tls.crt"))

        await until(published)
        await until(issued)
        before = await bundle()
        await api.json_patch(
            MUTATING_WEBHOOKS,
            names.WEBHOOK_CONFIGURATIONS,
            [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}],
        )
        await until(published)
    after = await bundle()
    assert read_bundle(base64.b64decode(after)) == read_bundle(base64.b64decode(before))


@pytest.fixture
async def webhook(api: Api) -> AsyncIterator[None]:
    """Return webhook configurations with our name, for a kind that does not exist."""
    hook = {
        "name": "one.vgpu.dev",
        "clientConfig": {"service": {"namespace": "vgpu-system", "name": "vgpu-webhook"}},
        "rules": [
            {
                "apiGroups": ["example.com"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["nothings"],
            }
        ],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    metadata = {"name": names.WEBHOOK_CONFIGURATIONS}
    await api.create(MUTATING_WEBHOOKS, {"metadata": metadata, "webhooks": [hook]})
    yield
    with suppress(NotFound):
        await api.delete(MUTATING_WEBHOOKS, names.WEBHOOK_CONFIGURATIONS)
