"""Reflector, object writer and lease against an API server, which may be Kubernetes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from vgpu_api.resources import LEASES, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.lease import Elector, LeaseLost, LeaseTimes
from vgpu_client.object_writer import (
    Conflicted,
    ObjectWriter,
    Patch,
    Rejected,
    Request,
    Target,
    Write,
    Written,
)
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope

SHORT = LeaseTimes(duration_s=2, renew_s=0.2, retry_s=0.1, write_s=1.0)


class View:
    """Keeps the objects as delivered, and waits for an expected state."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self._told = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()

    def added(self, obj: dict[str, Any]) -> None:
        assert obj["metadata"]["name"] not in self.objects
        self._keep(obj)

    def modified(self, obj: dict[str, Any]) -> None:
        assert obj["metadata"]["name"] in self.objects
        self._keep(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        assert self.objects.pop(identity.name)["metadata"]["uid"] == identity.uid
        self._wake()

    def unreadable(self, identity: ObjectIdentity, raw: dict[str, Any], error: Exception) -> None:
        raise AssertionError(error)

    def _keep(self, obj: dict[str, Any]) -> None:
        self.objects[obj["metadata"]["name"]] = obj
        self._wake()

    def _wake(self) -> None:
        task = asyncio.ensure_future(self._notify())
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def _notify(self) -> None:
        async with self._told:
            self._told.notify_all()

    async def until(self, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        async with asyncio.timeout(10), self._told:
            await self._told.wait_for(lambda: holds(self.objects))


def a_claim(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": VGPU_CLAIMS.api_version,
        "kind": VGPU_CLAIMS.kind,
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"requests": [{"memory": "4Gi"}]},
    }


def an_allocation(node: str) -> list[dict[str, Any]]:
    allocation = {"nodeName": node, "devices": [], "allocatedTime": "2026-01-01T00:00:00Z"}
    return [{"op": "add", "path": "/status", "value": {"allocation": allocation}}]


def a_write(claim: dict[str, Any], node: str, *first: Request) -> Write:
    return written_on(claim, *first, Patch(an_allocation(node), subresource="status"))


def written_on(claim: dict[str, Any], *requests: Request) -> Write:
    """Return a write that was decided on this version of a claim."""
    metadata = claim["metadata"]
    target = Target(VGPU_CLAIMS, metadata["namespace"], metadata["name"])
    return Write(target, requests, metadata["resourceVersion"])


def raw(obj: dict[str, Any]) -> dict[str, Any]:
    return obj


async def test_a_reflector_follows_what_happens(api: Api, namespace: str) -> None:
    view = View()
    await api.create(VGPU_CLAIMS, a_claim(namespace, "before"))
    reflector = Reflector(api, VGPU_CLAIMS, view, decode=raw, scope=Scope(namespace=namespace))
    running = asyncio.ensure_future(reflector.run())
    async with asyncio.timeout(10):
        await reflector.synced.wait()
    assert list(view.objects) == ["before"]
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace, "after"))
    await view.until(lambda objects: "after" in objects)
    claim["spec"]["ttlSecondsAfterUnused"] = 9
    await api.replace(VGPU_CLAIMS, claim)
    await view.until(lambda seen: seen["after"]["spec"].get("ttlSecondsAfterUnused") == 9)
    await api.delete(VGPU_CLAIMS, "before", namespace=namespace)
    await view.until(lambda objects: "before" not in objects)
    async with asyncio.timeout(10):
        await reflector.relist()
    assert list(view.objects) == ["after"]
    running.cancel()
    await asyncio.wait({running})


async def test_an_agent_sees_only_the_claims_of_its_node(api: Api, namespace: str) -> None:
    view = View()
    scope = Scope(field_selector=f"status.allocation.nodeName={namespace}")
    reflector = Reflector(api, VGPU_CLAIMS, view, decode=raw, scope=scope)
    running = asyncio.ensure_future(reflector.run())
    writer = ObjectWriter(api)
    claims = [await api.create(VGPU_CLAIMS, a_claim(namespace, name)) for name in ("a", "b")]
    await writer.submit(a_write(claims[0], namespace))
    await writer.submit(a_write(claims[1], "elsewhere"))
    await view.until(lambda objects: list(objects) == ["a"])
    current = await api.get(VGPU_CLAIMS, "a", namespace=namespace)
    await writer.submit(a_write(current, "elsewhere"))
    await view.until(lambda objects: not objects)
    running.cancel()
    await asyncio.wait({running})


async def test_of_two_writes_on_one_version_the_second_conflicts(api: Api, namespace: str) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace, "c"))
    writer = ObjectWriter(api)
    first, second = writer.submit(a_write(claim, "n1")), writer.submit(a_write(claim, "n2"))
    await writer.drain()
    written = first.result()
    assert isinstance(written, Written)
    assert written.obj["status"]["allocation"]["nodeName"] == "n1"
    assert isinstance(second.result(), Conflicted)


async def test_a_finalizer_stands_before_the_allocation_and_goes_after_it(
    api: Api, namespace: str
) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace, "c"))
    writer = ObjectWriter(api)
    hold = Patch([{"op": "add", "path": "/metadata/finalizers", "value": ["vgpu.dev/in-use"]}])
    allocated = await writer.submit(a_write(claim, "n1", hold))
    assert isinstance(allocated, Written)
    assert allocated.obj["metadata"]["finalizers"] == ["vgpu.dev/in-use"]
    release = Patch([{"op": "remove", "path": "/status/allocation"}], subresource="status")
    let_go = Patch([{"op": "remove", "path": "/metadata/finalizers"}])
    released = await writer.submit(written_on(allocated.obj, release, let_go))
    assert isinstance(released, Written)
    assert "allocation" not in released.obj["status"]
    assert "finalizers" not in released.obj["metadata"]


async def test_a_status_that_breaks_the_schema_is_rejected(api: Api, namespace: str) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace, "c"))
    bad = [{"op": "add", "path": "/status", "value": {"state": "Confused"}}]
    outcome = await ObjectWriter(api).submit(written_on(claim, Patch(bad, subresource="status")))
    assert isinstance(outcome, Rejected)
    assert outcome.error.status == 422


async def test_many_writes_side_by_side_are_all_written(api: Api, namespace: str) -> None:
    claims = [await api.create(VGPU_CLAIMS, a_claim(namespace, f"c{n}")) for n in range(100)]
    writer = ObjectWriter(api)
    outcomes = await asyncio.gather(*(writer.submit(a_write(claim, "n")) for claim in claims))
    assert [outcome for outcome in outcomes if not isinstance(outcome, Written)] == []
    assert writer.pending == 0


async def test_a_lease_goes_from_one_to_the_next_when_released(api: Api, namespace: str) -> None:
    first, second = (
        Elector(api, namespace=namespace, name="operator", identity=name, times=SHORT)
        for name in ("first", "second")
    )
    async with asyncio.timeout(5):
        await first.acquire()
    waiting = asyncio.ensure_future(second.acquire())
    await asyncio.sleep(0.5)
    assert first.is_leading()
    assert not waiting.done()
    await first.release()
    async with asyncio.timeout(5):
        await waiting
    assert second.is_leading()
    assert not first.is_leading()
    lease = await api.get(LEASES, "operator", namespace=namespace)
    assert lease["spec"]["holderIdentity"] == "second"
    assert lease["spec"]["leaseTransitions"] == 1


async def test_a_holder_whose_lease_was_taken_is_told(api: Api, namespace: str) -> None:
    elector = Elector(api, namespace=namespace, name="operator", identity="first", times=SHORT)
    async with asyncio.timeout(5):
        await elector.acquire()
    taken = {"spec": {"holderIdentity": "thief"}}
    await api.merge_patch(LEASES, "operator", taken, namespace=namespace)
    with pytest.raises(LeaseLost, match="held by thief"):
        async with asyncio.timeout(5):
            await elector.keep()
    assert not elector.is_leading()
