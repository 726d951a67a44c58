"""A device's status shows the claims that hold it, and two nodes may report the same UUID."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from builders import a_claim, a_device, a_node, an_allocation
from replica import Replica
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_client.errors import ServerError
from vgpu_client.recorder import Regarding
from vgpu_operator.engine.devices.reports import SHOWN_WITHIN_S
from vgpu_operator.engine.effects import WriteDevice


async def applied(replica: Replica) -> list[tuple[str, dict[str, Any]]]:
    """Settle, and return the statuses applied until then, which the watch then delivers."""
    new = await written(replica)
    show(replica, new)
    return [(obj["metadata"]["name"], obj["status"]) for obj in new]


async def written(replica: Replica) -> list[dict[str, Any]]:
    """Settle, and return the statuses applied until then, which the watch has not delivered."""
    before = len(replica.api.applied)
    for _ in range(2):  # the watch delivers a view twice
        replica.time += SHOWN_WITHIN_S
        await replica.settle()
    return list(replica.api.applied[before:])


def show(replica: Replica, new: Sequence[dict[str, Any]]) -> None:
    """Deliver the applied statuses through the watch."""
    for obj in new:
        for node in replica.ledger.nodes():
            for device in replica.ledger.devices(node):
                if device.metadata.name == obj["metadata"]["name"]:
                    replica.news.device_changed(merged(device, obj))


def merged(device: GPUDevice, applied: dict[str, Any]) -> GPUDevice:
    """Return the result of server-side apply: fields that the manager leaves out are removed."""
    wire, status = device.to_wire(), applied["status"]
    kept = [c for c in wire["status"]["conditions"] if c["type"] != "DuplicateUUID"]
    wire["status"] |= {**status, "conditions": [*kept, *status.get("conditions", [])]}
    wire["metadata"]["resourceVersion"] = applied["metadata"]["resourceVersion"]
    return GPUDevice.model_validate(wire)


async def test_of_a_node_no_more_devices_are_used_than_any_host_has(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[tuple[str, str]] = []

    def record(regarding: Regarding, *, reason: str, **_: Any) -> None:
        recorded.append((regarding.name, reason))

    monkeypatch.setattr(replica.recorder, "record", record)
    replica.news.node_changed(a_node("node-1"))
    replica.news.node_changed(a_node("node-2"))
    for number in range(200):
        replica.news.device_changed(a_device(uuid=f"GPU-{number}", node="node-1"))
    replica.news.device_changed(a_device(uuid="GPU-other", node="node-2"))
    assert len(replica.ledger.devices("node-1")) == 64
    assert len(replica.ledger.devices("node-2")) == 1
    known = replica.ledger.devices("node-1")[0]
    changed = a_device(uuid=known.status.uuid, node="node-1", cordoned=True, resource_version=9)
    replica.news.device_changed(changed)
    assert replica.ledger.devices("node-1")[0].spec.cordoned
    replica.news.device_gone(known.metadata.name)
    replica.news.device_changed(a_device(uuid="GPU-199", node="node-1"))
    assert len(replica.ledger.devices("node-1")) == 64
    await replica.settle()
    assert recorded == [("node-1", "TooManyDevices")]


async def test_the_later_device_of_one_uuid_is_marked_and_unmarked_when_the_first_goes(
    replica: Replica,
) -> None:
    for node in ("node-1", "node-2"):
        replica.news.node_changed(a_node(node))
    replica.news.device_changed(a_device(name="gpu-0", node="node-1"))
    replica.news.device_changed(a_device(name="gpu-0.1234abcd", node="node-2"))
    new = await applied(replica)
    marked = {name: status["conditions"][0] for name, status in new if "conditions" in status}
    assert set(marked) == {"gpu-0.1234abcd"}
    assert {(c["type"], c["status"], c["message"]) for c in marked.values()} == {
        (
            "DuplicateUUID",
            "True",
            "GPUDevice gpu-0 of node node-1 is older and has UUID GPU-0, too; nothing is placed on "
            "this one",
        )
    }
    assert await applied(replica) == []  # reported once
    replica.news.device_gone("gpu-0")
    assert [(name, "conditions" in status) for name, status in await applied(replica)] == [
        ("gpu-0.1234abcd", False)
    ]


async def test_what_claims_hold_of_a_device_is_shown_until_they_hold_nothing(
    replica: Replica,
) -> None:
    replica.device()
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


async def test_a_device_that_nobody_ever_held_shows_zeros_and_is_written_once(
    replica: Replica,
) -> None:
    replica.device()
    zeros = {"allocated": {"memory": "0", "cores": 0, "slots": 0}, "claims": []}
    assert await applied(replica) == [("gpu-0", zeros)]
    assert await applied(replica) == []


async def test_what_was_written_is_not_written_again_while_the_watch_is_behind(
    replica: Replica,
) -> None:
    replica.device()
    replica.claim(a_claim("mine", allocation=an_allocation()))
    new = await written(replica)
    assert len(new) == 1
    (device,) = replica.ledger.devices("node-1")
    replica.news.device_changed(device)  # an older version
    assert await written(replica) == []
    show(replica, new)
    assert await written(replica) == []


async def test_a_device_that_changes_while_it_is_written_is_written_once_more(
    replica: Replica,
) -> None:
    replica.device()
    replica.claim(a_claim("mine", allocation=an_allocation()))
    looked: list[int] = []

    def another_claim(verb: str, _: str) -> None:
        if verb == "apply" and not looked:
            looked.append(1)
            replica.claim(a_claim("other", allocation=an_allocation()))
            replica.time += SHOWN_WITHIN_S
            for effects in replica.engine.round():
                looked.extend(isinstance(effect, WriteDevice) for effect in effects)

    replica.api.before = another_claim
    names = [
        [claim["name"] for claim in obj["status"]["claims"]]
        for obj in [*await written(replica), *await written(replica)]
    ]
    assert True not in looked[1:], "a second write beside the first"
    assert names == [["mine"], ["mine", "other"]]


async def test_a_device_write_that_failed_is_tried_again(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("mine", allocation=an_allocation()))
    error = ServerError("no", status=500)
    replica.api.before = lambda verb, _: error if verb == "apply" else None
    assert await written(replica) == []
    replica.api.before = lambda verb, name: None
    assert len(await written(replica)) == 1


async def fill(replica: Replica, *, claims: int, within_s: float) -> None:
    for number in range(claims):
        replica.claim(a_claim(f"c-{number}", allocation=an_allocation()))
        replica.time += within_s / claims
        await replica.settle()


async def test_a_device_that_fills_is_written_once_when_it_has_come_to_rest(
    replica: Replica,
) -> None:
    replica.device()
    await fill(replica, claims=10, within_s=2.5)
    assert replica.api.applied == []
    (last,) = await written(replica)
    assert len(last["status"]["claims"]) == 10


async def test_a_device_that_does_not_come_to_rest_is_written_now_and_then(
    replica: Replica,
) -> None:
    replica.device()
    await fill(replica, claims=60, within_s=6 * SHOWN_WITHIN_S)
    assert 5 <= len(replica.api.applied) <= 8
