"""What a device's status says of who holds it, and that its UUID is not its own alone."""

from __future__ import annotations

from typing import Any

from builders import a_claim, a_device, a_node, an_allocation
from vgpu_api.v1alpha1 import GPUDevice


async def applied(replica: Any) -> list[tuple[str, dict[str, Any]]]:
    """Settle; the statuses that were applied meanwhile, by device. The watch brings them back."""
    replica.time += 1
    before = len(replica.api.applied)
    await replica.settle()
    new = [(obj["metadata"]["name"], obj["status"]) for obj in replica.api.applied[before:]]
    for name, status in new:
        for node in replica.ledger.nodes():
            for device in replica.ledger.devices(node):
                if device.metadata.name == name:
                    replica.news.device_changed(merged(device, status))
    return new


def merged(device: GPUDevice, status: dict[str, Any]) -> GPUDevice:
    """What server-side apply makes of it: what the manager leaves out goes."""
    wire = device.to_wire()
    kept = [c for c in wire["status"]["conditions"] if c["type"] != "DuplicateUUID"]
    wire["status"] |= {**status, "conditions": [*kept, *status.get("conditions", [])]}
    wire["metadata"]["resourceVersion"] = str(int(device.metadata.resource_version) + 1)
    return GPUDevice.model_validate(wire)


async def test_both_devices_of_one_uuid_are_marked_and_unmarked_when_one_goes(
    replica: Any,
) -> None:
    for node in ("node-1", "node-2"):
        replica.news.node_changed(a_node(node))
    replica.news.device_changed(a_device(name="gpu-0", node="node-1"))
    replica.news.device_changed(a_device(name="gpu-0.1234abcd", node="node-2"))
    marked = {name: status["conditions"][0] for name, status in await applied(replica)}
    assert set(marked) == {"gpu-0", "gpu-0.1234abcd"}
    assert {(c["type"], c["status"]) for c in marked.values()} == {("DuplicateUUID", "True")}
    assert await applied(replica) == []  # said once
    replica.news.device_gone("gpu-0.1234abcd")
    assert [(name, "conditions" in status) for name, status in await applied(replica)] == [
        ("gpu-0", False)
    ]


async def test_what_claims_hold_of_a_card_is_shown_until_they_hold_nothing(replica: Any) -> None:
    replica.card()
    mine = replica.claim(a_claim("mine", allocation=an_allocation()))
    ((_, status),) = await applied(replica)
    assert status["allocated"] == {"memory": "1Gi", "cores": 0, "slots": 1}
    assert status["claims"] == [
        {"namespace": "default", "name": "mine", "memory": "1Gi", "cores": 0}
    ]
    replica.news.claim_gone(("default", "mine"), mine.metadata.uid)
    ((_, status),) = await applied(replica)
    assert status["allocated"] == {"memory": "0", "cores": 0, "slots": 0}
    assert status["claims"] == []


async def test_a_card_that_nobody_ever_held_is_not_written_about(replica: Any) -> None:
    replica.card()
    assert await applied(replica) == []
