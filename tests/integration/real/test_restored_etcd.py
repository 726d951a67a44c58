"""A reflector notices a restore of etcd, on a real etcd and API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vgpu_api.resources import CONFIG_MAPS
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.errors import DataRestored
from vgpu_client.reflector import ObjectIdentity, Reflector, ReflectorTimes, Scope
from vgpu_local.control_plane import ControlPlane

pytestmark = pytest.mark.timeout(240)

BUMP = 200
"""More writes than there were between the backup and the restore, so that versions go on. It is
what `--bump-revision` is for; the reflector lists only after them."""


class Seen:
    """Records which objects were delivered in which version."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.changed = asyncio.Event()

    def added(self, raw: dict[str, Any]) -> None:
        self.versions[raw["metadata"]["name"]] = int(raw["metadata"]["resourceVersion"])
        self.changed.set()

    modified = added

    def deleted(self, identity: ObjectIdentity) -> None:
        del self.versions[identity.name]
        self.changed.set()

    def unreadable(self, identity: ObjectIdentity, raw: dict[str, Any], error: Exception) -> None:
        raise error


def a_config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


@pytest.mark.parametrize(("later", "from_cache"), [("modified", False), ("deleted", True)])
async def test_a_restore_after_which_versions_go_on_is_noticed_by_the_objects(
    later: str, from_cache: bool
) -> None:
    with ControlPlane() as plane:
        async with Api.connect(str(plane.kubeconfig)) as api:
            await api.create(CONFIG_MAPS, a_config_map("a"))
        await asyncio.to_thread(plane.back_up)
        may_list = asyncio.Event()

        class UntilItMayList(Clock):
            async def sleep(self, seconds: float) -> None:
                await may_list.wait()

        times = ReflectorTimes(clock=UntilItMayList())

        async with Api.connect(str(plane.kubeconfig)) as api:
            seen = Seen()
            scope = Scope(namespace="default", from_cache=from_cache)
            reflector = Reflector(
                api, CONFIG_MAPS, seen, decode=lambda raw: raw, scope=scope, times=times
            )
            running = asyncio.ensure_future(reflector.run())
            await reflector.synced.wait()
            before = seen.versions["a"]
            if later == "modified":
                await api.merge_patch(
                    CONFIG_MAPS, "a", {"data": {"is": "new"}}, namespace="default"
                )
            else:
                await api.delete(CONFIG_MAPS, "a", namespace="default")
            while seen.versions.get("a") == before:
                seen.changed.clear()
                await seen.changed.wait()
            position = await api.current_version(CONFIG_MAPS)
            await asyncio.to_thread(plane.restore)
            for number in range(BUMP):
                await api.create(CONFIG_MAPS, a_config_map(f"later-{number}"))
            assert await api.current_version(CONFIG_MAPS) > position
            there = await api.get(CONFIG_MAPS, "a", namespace="default")
            assert int(there["metadata"]["resourceVersion"]) == before
            may_list.set()
            with pytest.raises(DataRestored, match=f"default/a is at version {before}, and was"):
                async with asyncio.timeout(60):
                    await running
