"""The rules of our kinds that are written in CEL, which only a real API server evaluates."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from vgpu_api.resources import GPU_DEVICES, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import Invalid


def a_claim(namespace: str, *requests: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": VGPU_CLAIMS.api_version,
        "kind": VGPU_CLAIMS.kind,
        "metadata": {"namespace": namespace, "name": "c"},
        "spec": {"requests": list(requests) or [{"memory": "4Gi"}], **spec},
    }


async def an_allocated_claim(api: Api, namespace: str, *requests: dict[str, Any]) -> Any:
    await api.create(VGPU_CLAIMS, a_claim(namespace, *requests))
    allocation = {"nodeName": "n", "devices": [], "allocatedTime": "2026-01-01T00:00:00Z"}
    status = {"allocation": allocation}
    return await api.json_patch(
        VGPU_CLAIMS,
        "c",
        [{"op": "add", "path": "/status", "value": status}],
        namespace=namespace,
        subresource="status",
    )


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([{"memory": "1Gi", "memoryPercent": 5}], "give memory or memoryPercent, not both"),
        ([{"memory": "4000"}], "1Mi or more"),
        ([{"memory": "1048577"}], "whole number of MiB"),
        ([{"name": "a"}, {"count": 1}], "a request without a name must be the only one"),
        ([{"name": "a"}, {"name": "a"}], "two requests have the same name"),
        ([{}, {"name": ""}], "a request without a name must be the only one"),
    ],
)
async def test_a_claim_that_breaks_a_rule_is_told_which(
    api: Api, namespace: str, requests: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        await api.create(VGPU_CLAIMS, a_claim(namespace, *requests))


async def test_an_allocated_claim_may_change_its_sizes_and_its_ttl(
    api: Api, namespace: str
) -> None:
    claim = await an_allocated_claim(api, namespace)
    claim["spec"]["requests"][0].update(memory="8Gi", cores=50)
    claim["spec"]["ttlSecondsAfterUnused"] = 60
    changed = await api.replace(VGPU_CLAIMS, claim)
    assert changed["spec"]["requests"][0]["memory"] == "8Gi"


async def test_an_allocated_claim_may_change_its_percentage(api: Api, namespace: str) -> None:
    claim = await an_allocated_claim(api, namespace, {"memoryPercent": 50})
    claim["spec"]["requests"][0]["memoryPercent"] = 25
    changed = await api.replace(VGPU_CLAIMS, claim)
    assert changed["spec"]["requests"][0]["memoryPercent"] == 25


async def test_an_allocated_claims_defaults_may_be_written_out(api: Api, namespace: str) -> None:
    claim = await an_allocated_claim(api, namespace)
    assert claim["spec"]["requests"] == [{"memory": "4Gi"}]
    defaults = {"phase": "App", "count": 1, "vendor": "nvidia", "mode": "Any"}
    claim["spec"]["requests"][0].update(name="", corePolicy="Default", **defaults)
    changed = await api.replace(VGPU_CLAIMS, claim)
    assert changed["spec"]["requests"][0]["count"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"requests": [{"name": "", "memory": "4Gi", "count": 2}]},
        {"requests": [{"name": "other", "memory": "4Gi"}]},
        {"requests": [{"name": "", "memory": "4Gi", "selector": {"models": ["A100"]}}]},
        {"requests": [{"name": "", "memory": "4Gi"}, {"name": "b", "memory": "4Gi"}]},
        {"placement": {"node": "Spread"}},
        {"bindingMode": "Immediate"},
        {"schedulingPriority": 7},
    ],
)
async def test_nothing_else_of_an_allocated_claim_changes(
    api: Api, namespace: str, change: dict[str, Any]
) -> None:
    claim = await an_allocated_claim(api, namespace)
    claim["spec"].update(change)
    with pytest.raises(Invalid, match=r"once (the claim is )?allocated"):
        await api.replace(VGPU_CLAIMS, claim)


async def test_the_requests_of_an_allocated_claim_keep_their_order(
    api: Api, namespace: str
) -> None:
    """Their order decides which sidecars count with an init container."""
    requests = [{"name": "side"}, {"name": "prepare", "phase": "Init"}]
    claim = await an_allocated_claim(api, namespace, *requests)
    claim["spec"]["requests"][1]["memory"] = "1Gi"
    claim = await api.replace(VGPU_CLAIMS, claim)
    claim["spec"]["requests"].reverse()
    with pytest.raises(Invalid, match="the order of requests"):
        await api.replace(VGPU_CLAIMS, claim)


async def test_a_claim_without_an_allocation_changes_freely(api: Api, namespace: str) -> None:
    claim = await api.create(VGPU_CLAIMS, a_claim(namespace))
    claim["spec"]["bindingMode"] = "Immediate"
    claim["spec"]["requests"] = [{"name": "a", "count": 2}, {"name": "b", "memoryPercent": 5}]
    assert (await api.replace(VGPU_CLAIMS, claim))["spec"]["bindingMode"] == "Immediate"


async def test_a_device_stays_on_its_node(api: Api) -> None:
    device = await api.create(
        GPU_DEVICES,
        {
            "apiVersion": GPU_DEVICES.api_version,
            "kind": GPU_DEVICES.kind,
            "metadata": {"name": f"gpu-{secrets.token_hex(8)}"},
            "spec": {"nodeName": "node-1"},
        },
    )
    device["spec"]["nodeName"] = "node-2"
    with pytest.raises(Invalid, match="never changes"):
        await api.replace(GPU_DEVICES, device)
