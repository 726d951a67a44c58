"""kube-scheduler finds the leader by its address in the Service's EndpointSlice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vgpu_api.resources import ENDPOINT_SLICES, Resource
from vgpu_client.errors import ServerError
from vgpu_operator.extender.endpoint import Advertised, Endpoint


class Slices:
    """An API server that refuses the first slices and accepts later ones."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.applied: list[dict[str, Any]] = []
        self.tries = 0

    async def apply(self, resource: Resource, obj: dict[str, Any], **how: Any) -> dict[str, Any]:
        assert resource is ENDPOINT_SLICES
        assert how == {"field_manager": "vgpu-operator", "force": True}
        self.tries += 1
        if self.tries <= self._failures:
            raise ServerError("not now", status=500)
        self.applied.append(obj)
        return obj


async def waits_until_written(
    *, failures: int, times: int, address: str
) -> tuple[Any, list[float]]:
    api: Any = Slices(failures)
    waits: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(api.applied) == times:
            enough.set()
        await asyncio.sleep(0)

    advertised = Advertised("vgpu-system", "vgpu-extender", address, 9443)
    task = asyncio.ensure_future(Endpoint(api, advertised, sleep=sleep).run())
    await enough.wait()
    task.cancel()
    return api, waits


async def test_the_slice_belongs_to_the_service_and_names_the_leader_alone() -> None:
    api, _ = await waits_until_written(failures=0, times=1, address="192.0.2.7")
    (written,) = api.applied
    assert written["metadata"]["name"] == "vgpu-extender-vgpu"
    assert written["metadata"]["labels"]["kubernetes.io/service-name"] == "vgpu-extender"
    assert [endpoint["addresses"] for endpoint in written["endpoints"]] == [["192.0.2.7"]]
    assert [port["port"] for port in written["ports"]] == [9443]


@pytest.mark.parametrize(("address", "family"), [("192.0.2.7", "IPv4"), ("2001:db8::7", "IPv6")])
async def test_the_slice_is_of_the_addresss_family(address: str, family: str) -> None:
    api, _ = await waits_until_written(failures=0, times=1, address=address)
    assert api.applied[0]["addressType"] == family


async def test_a_slice_that_was_not_taken_is_written_again_soon_and_then_now_and_then() -> None:
    api, waits = await waits_until_written(failures=2, times=2, address="192.0.2.7")
    assert api.tries == 4
    assert waits[0] == waits[1] < 1 < waits[2]
