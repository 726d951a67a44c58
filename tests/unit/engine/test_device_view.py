"""What a device's status says of who holds it, and that its UUID is not its own alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import a_claim, a_device, a_node, an_allocation
from vgpu_api.config import ClusterConfig
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_operator.engine.device_view import DeviceView
from vgpu_operator.ledger import Ledger


class Applied:
    """An API that applies one manager's device statuses; what it leaves out goes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.writes: list[tuple[str, dict[str, Any]]] = []
        self.version = 100

    async def apply(self, resource: Any, obj: dict[str, Any], **how: Any) -> None:
        assert (how["subresource"], how["field_manager"]) == ("status", "vgpu-operator")
        name, status = obj["metadata"]["name"], obj["status"]
        self.writes.append((name, status))
        for node in self._ledger.nodes():
            for device in self._ledger.devices(node):
                if device.metadata.name == name:
                    self._ledger.apply_device(self._merged(device, status))

    def _merged(self, device: GPUDevice, status: dict[str, Any]) -> GPUDevice:
        self.version += 1
        wire = device.to_wire()
        kept = [c for c in wire["status"]["conditions"] if c["type"] != "DuplicateUUID"]
        wire["status"] |= {**status, "conditions": [*kept, *status.get("conditions", [])]}
        wire["metadata"]["resourceVersion"] = str(self.version)
        return GPUDevice.model_validate(wire)


class Bench:
    """A view that works when told to."""

    def __init__(self) -> None:
        self.ledger = Ledger(config=ClusterConfig())
        self.api: Any = Applied(self.ledger)
        self._turn = asyncio.Event()
        self._done = asyncio.Event()
        self.view = DeviceView(
            api=self.api,
            ledger=self.ledger,
            leads=lambda: True,
            unix=lambda: 1.7e9,
            sleep=self._sleep,
        )
        for node in ("node-1", "node-2"):
            self.ledger.apply_node(a_node(node))

    async def _sleep(self, _: float) -> None:
        self._done.set()
        await self._turn.wait()
        self._turn.clear()

    async def rounds(self, count: int = 2) -> None:
        for _ in range(count):
            self._done.clear()
            self._turn.set()
            await self._done.wait()


@pytest.fixture
async def bench() -> Any:
    made = Bench()
    task = asyncio.create_task(made.view.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_both_devices_of_one_uuid_are_marked_and_unmarked_when_one_goes(bench: Any) -> None:
    bench.ledger.apply_device(a_device(name="gpu-0", node="node-1"))
    bench.ledger.apply_device(a_device(name="gpu-0.1234abcd", node="node-2"))
    await bench.rounds(4)
    marked = {name: status["conditions"][0] for name, status in bench.api.writes}
    assert set(marked) == {"gpu-0", "gpu-0.1234abcd"}
    assert {(c["type"], c["status"]) for c in marked.values()} == {("DuplicateUUID", "True")}
    bench.api.writes.clear()
    await bench.rounds(4)
    assert bench.api.writes == []  # said once
    bench.ledger.remove_device("gpu-0.1234abcd")
    await bench.rounds(4)
    assert [(name, "conditions" in status) for name, status in bench.api.writes] == [
        ("gpu-0", False)
    ]


async def test_what_claims_hold_of_a_card_is_shown(bench: Any) -> None:
    bench.ledger.apply_device(a_device())
    bench.ledger.apply_claim(a_claim("mine", allocation=an_allocation()))
    await bench.rounds()
    ((_, status),) = bench.api.writes
    assert status["allocated"] == {"memory": "1Gi", "cores": 0, "slots": 1}
    assert status["claims"] == [
        {"namespace": "default", "name": "mine", "memory": "1Gi", "cores": 0}
    ]
