"""The leader's Kopf handlers with the operator's own rights, where no webhook answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vgpu_api.resources import CONFIG_MAPS, EVENTS, Resource
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.recorder import Recorder
from vgpu_client.transport import Object
from vgpu_local.accounts import OPERATOR, kubeconfig_with, token
from vgpu_local.control_plane import ControlPlane
from vgpu_operator.config import parse
from vgpu_operator.controllers.controllers import Controllers

ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", True)
NAMESPACE, ROLE = OPERATOR
WRONG = {"config.yaml": "nvidia: {defaultCores: 101}"}


@pytest.fixture(scope="module")
async def admin(plane: ControlPlane) -> AsyncIterator[Api]:
    async with Api.connect(str(plane.kubeconfig)) as api:
        yield api


@pytest.fixture
async def leader(plane: ControlPlane, admin: Api, tmp_path: Path) -> AsyncIterator[Controllers]:
    bearer = await token(admin, OPERATOR)
    path = kubeconfig_with(plane.kubeconfig, tmp_path / "operator", bearer)
    async with Api.connect(str(path)) as api:
        recorder = Recorder(api, "vgpu-operator", clock=Clock(api))
        recording = asyncio.create_task(recorder.run())
        yield Controllers(parse([f"--kubeconfig={path}"], {}), recorder, None)
        recording.cancel()
        await asyncio.wait({recording})


async def event_about(admin: Api, name: str) -> Object:
    """Return the event about a ConfigMap, once there is one."""
    async with asyncio.timeout(30):
        while True:
            found = await admin.list(EVENTS, namespace=NAMESPACE)
            for event in found.items:
                if event["involvedObject"]["name"] == name:
                    return event
            await asyncio.sleep(0.05)


async def configure(admin: Api, name: str) -> None:
    metadata = {"name": name, "namespace": NAMESPACE}
    await admin.create(CONFIG_MAPS, {"metadata": metadata, "data": WRONG})


async def test_a_configuration_that_no_webhook_could_refuse_is_reported(
    admin: Api, leader: Controllers
) -> None:
    running = asyncio.create_task(leader.run())
    await configure(admin, "vgpu-config-unseen")
    event = await event_about(admin, "vgpu-config-unseen")
    assert event["reason"] == "ConfigMapInvalid"
    running.cancel()
    await asyncio.wait({running})


async def test_a_right_that_comes_late_needs_no_restart(
    admin: Api, leader: Controllers, caplog: pytest.LogCaptureFixture
) -> None:
    role = await admin.get(ROLES, ROLE, namespace=NAMESPACE)
    less = [rule for rule in role["rules"] if "configmaps" not in rule["resources"]]
    assert len(less) == len(role["rules"]) - 1
    await admin.replace(ROLES, {**role, "rules": less})
    await configure(admin, "vgpu-config-unread")
    running = asyncio.create_task(leader.run())
    async with asyncio.timeout(30):
        while True:
            if "configmaps is forbidden" in caplog.text:
                break
            await asyncio.sleep(0.05)
    assert not running.done()
    found = await admin.get(ROLES, ROLE, namespace=NAMESPACE)
    await admin.replace(ROLES, {**found, "rules": role["rules"]})
    await event_about(admin, "vgpu-config-unread")
    running.cancel()
    await asyncio.wait({running})
