"""The API server keeps objects of our kinds: defaults, refusals, status, selection, two writers."""

from __future__ import annotations

import secrets
from contextlib import aclosing
from typing import Any

import pytest

from vgpu_api.resources import GPU_DEVICES, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import Conflict, Invalid, PatchDoesNotFit

ALLOCATION = {
    "nodeName": "node-1",
    "id": "00000000-0000-0000-0000-000000000001",
    "devices": [],
    "allocatedTime": "2026-01-01T00:00:00Z",
    "initRound": 0,
}


def a_claim(namespace: str, name: str = "c", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": VGPU_CLAIMS.api_version,
        "kind": VGPU_CLAIMS.kind,
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"requests": [{"memory": "4Gi"}], **spec},
    }


def a_device(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": GPU_DEVICES.api_version,
        "kind": GPU_DEVICES.kind,
        "metadata": {"name": name},
        "spec": {"nodeName": "node-1", **spec},
    }


async def write_status(api: Api, claim: dict[str, Any], *operations: dict[str, Any]) -> Any:
    metadata = claim["metadata"]
    return await api.json_patch(
        VGPU_CLAIMS,
        metadata["name"],
        [
            {
                "op": "test",
                "path": "/metadata/resourceVersion",
                "value": metadata["resourceVersion"],
            },
            *operations,
        ],
        namespace=metadata["namespace"],
        subresource="status",
    )


async def allocate(api: Api, claim: dict[str, Any], node: str = "node-1") -> Any:
    status = {"allocation": {**ALLOCATION, "nodeName": node}}
    return await write_status(api, claim, {"op": "add", "path": "/status", "value": status})


async def test_a_claim_gets_its_defaults_and_its_list_stays_as_it_was_written(
    api: Api, namespace: str
) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    assert claim["spec"] == {
        "bindingMode": "WaitForFirstConsumer",
        "schedulingPriority": 0,
        "requests": [{"memory": "4Gi"}],
    }
    assert claim["metadata"]["generation"] == 1


async def test_fields_that_are_not_in_the_schema_are_dropped(api: Api, namespace: str) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace, nonsense=1))
    assert "nonsense" not in claim["spec"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"requests": [{"count": 0}]}, "spec.requests[0].count"),
        ({"requests": [{"count": 65}]}, "spec.requests[0].count"),
        ({"requests": [{"cores": 101}]}, "spec.requests[0].cores"),
        ({"requests": [{"memoryPercent": 0}]}, "spec.requests[0].memoryPercent"),
        ({"requests": [{"corePolicy": "Sometimes"}]}, "spec.requests[0].corePolicy"),
        ({"requests": []}, "spec.requests"),
        ({"bindingMode": "Never"}, "spec.bindingMode"),
    ],
)
async def test_a_claim_that_breaks_the_schema_is_refused_by_the_field(
    api: Api, namespace: str, spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await api.create(VGPU_CLAIMS, a_claim(namespace, **spec))
    assert field in [cause["field"] for cause in caught.value.details["causes"]]


async def test_status_is_dropped_on_create_and_on_a_plain_write(api: Api, namespace: str) -> None:
    claim = await api.create(VGPU_CLAIMS, {**a_claim(namespace), "status": {"state": "InUse"}})
    assert "state" not in claim["status"]
    claim = await api.replace(VGPU_CLAIMS, {**claim, "status": {"state": "InUse"}})
    assert "state" not in claim["status"]


async def test_a_claim_says_that_no_operator_has_read_it_until_one_has(
    api: Api, namespace: str
) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    stored = await api.get(VGPU_CLAIMS, "c", namespace=namespace)
    assert claim["status"] == stored["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("id", "2026-01-01T00:00:00Z", "should match"),
        ("allocatedTime", "now", "must be of type date-time"),
        ("allocatedTime", "", "must be of type date-time"),
        ("initRound", -1, "should be greater than or equal to 0"),
    ],
)
async def test_an_allocation_is_named_and_counted_in_the_form_that_programs_compare(
    api: Api, namespace: str, field: str, value: Any, reason: str
) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    status = {"allocation": {**ALLOCATION, field: value}}
    with pytest.raises(Invalid, match=f"status.allocation.{field}.* {reason}"):
        await write_status(api, claim, {"op": "add", "path": "/status", "value": status})


async def test_a_write_of_status_changes_neither_spec_nor_generation(
    api: Api, namespace: str
) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    changed = await allocate(api, claim)
    assert changed["status"]["allocation"] == ALLOCATION
    assert changed["spec"] == claim["spec"]
    assert changed["metadata"]["generation"] == 1
    changed["spec"]["ttlSecondsAfterUnused"] = 5
    changed["status"]["state"] = "InUse"
    again = await api.replace(VGPU_CLAIMS, changed, subresource="status")
    assert "ttlSecondsAfterUnused" not in again["spec"]
    assert again["status"]["state"] == "InUse"


async def test_a_change_of_spec_moves_the_generation(api: Api, namespace: str) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    claim["spec"]["requests"][0]["memory"] = "8Gi"
    assert (await api.replace(VGPU_CLAIMS, claim))["metadata"]["generation"] == 2


async def test_two_deciders_cannot_both_allocate(api: Api, namespace: str) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    await allocate(api, claim, "node-1")
    with pytest.raises(PatchDoesNotFit):
        await allocate(api, claim, "node-2")
    kept = await api.get(VGPU_CLAIMS, "c", namespace=namespace)
    assert kept["status"]["allocation"]["nodeName"] == "node-1"


async def test_a_state_that_is_none_is_refused(api: Api, namespace: str) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    status = {"op": "add", "path": "/status", "value": {"state": "Confused"}}
    with pytest.raises(Invalid) as caught:
        await write_status(api, claim, status)
    assert "status.state" in [cause["field"] for cause in caught.value.details["causes"]]


async def test_claims_are_selected_by_the_node_they_were_given(api: Api, namespace: str) -> None:
    node = f"node-{secrets.token_hex(4)}"
    mine = await api.create(VGPU_CLAIMS, a_claim(namespace, "mine"))
    await api.create(VGPU_CLAIMS, a_claim(namespace, "nobodys"))
    await allocate(api, mine, node)
    selector = f"status.allocation.nodeName={node}"
    found = await api.list(VGPU_CLAIMS, field_selector=selector)
    assert [item["metadata"]["name"] for item in found.items] == ["mine"]


async def test_a_claim_that_leaves_a_selection_shows_as_deleted_in_its_watch(
    api: Api, namespace: str
) -> None:
    selector = f"status.allocation.nodeName=node-{namespace}"
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    start = claim["metadata"]["resourceVersion"]
    claim = await allocate(api, claim, f"node-{namespace}")
    left = await write_status(api, claim, {"op": "remove", "path": "/status/allocation"})
    seen = []
    events = api.watch(VGPU_CLAIMS, resource_version=start, field_selector=selector)
    async with aclosing(events):
        async for event in events:
            if event["type"] != "BOOKMARK":
                seen.append((event["type"], event["object"]["metadata"]["resourceVersion"]))
            if event["type"] == "DELETED":
                break
    assert seen == [
        ("ADDED", claim["metadata"]["resourceVersion"]),
        ("DELETED", left["metadata"]["resourceVersion"]),
    ]
    assert await api.get(VGPU_CLAIMS, "c", namespace=namespace)


def conditions(namespace: str, **by_type: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": "c"},
        "status": {
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": "Because",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "observedGeneration": 1,
                }
                for kind, status in by_type.items()
            ]
        },
    }


def types(claim: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in claim["status"].get("conditions", ())}


async def test_two_appliers_keep_their_conditions_side_by_side(api: Api, namespace: str) -> None:
    await api.create(VGPU_CLAIMS, a_claim(namespace))

    async def apply(manager: str, *, force: bool = False, **by_type: str) -> dict[str, Any]:
        return await api.apply(
            VGPU_CLAIMS,
            conditions(namespace, **by_type),
            field_manager=manager,
            force=force,
            subresource="status",
        )

    await apply("agent", Prepared="True", Violated="False")
    both = await apply("other", Ready="True")
    assert types(both) == {"Prepared": "True", "Violated": "False", "Ready": "True"}
    with pytest.raises(Conflict):
        await apply("other", Ready="True", Prepared="False")
    forced = await apply("other", force=True, Ready="True", Prepared="False")
    assert types(forced)["Prepared"] == "False"
    gone = await apply("agent", Prepared="False")  # the operator no longer reports Violated
    assert types(gone) == {"Prepared": "False", "Ready": "True"}


async def test_a_patch_of_one_condition_leaves_those_of_an_applier(
    api: Api, namespace: str
) -> None:
    await api.create(VGPU_CLAIMS, a_claim(namespace))
    claim = await api.apply(
        VGPU_CLAIMS,
        conditions(namespace, Prepared="True"),
        field_manager="agent",
        subresource="status",
    )
    mine = conditions(namespace, Allocated="True")["status"]["conditions"][0]
    await write_status(api, claim, {"op": "add", "path": "/status/conditions/-", "value": mine})
    again = await api.apply(
        VGPU_CLAIMS,
        conditions(namespace, Prepared="False"),
        field_manager="agent",
        subresource="status",
    )
    assert types(again) == {"Prepared": "False", "Allocated": "True"}


async def test_a_device_needs_its_node_and_gets_its_defaults(api: Api) -> None:
    name = f"gpu-{secrets.token_hex(8)}"
    device = await api.create(GPU_DEVICES, a_device(name))
    assert device["spec"]["mode"] == "Shared"
    assert device["spec"]["cordoned"] is False
    nameless = a_device(f"{name}-2")
    del nameless["spec"]["nodeName"]
    with pytest.raises(Invalid):
        await api.create(GPU_DEVICES, nameless)
