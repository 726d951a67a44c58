"""A refusal shows the reason that stops the claim now, in every place."""

from __future__ import annotations

import pytest

from builders import a_container, a_device, a_node
from replica import Replica
from vgpu_api.core import Pod, ResourceQuota
from vgpu_operator.engine.claims.status import refused_reason

T4_ONLY = {"nvidia.com/use-gputype": "T4"}


def a_mixed_cluster(replica: Replica) -> None:
    """Add two T4 of 16,384 MiB on node-t and four A100 on node-a."""
    for node, model, count in (("node-t", "Tesla T4", 2), ("node-a", "NVIDIA A100", 4)):
        replica.news.node_changed(a_node(node))
        for index in range(count):
            uuid = f"GPU-{node}-{index}"
            device = a_device(uuid=uuid, node=node, index=index, model=model, memory_mib=16384)
            replica.news.device_changed(device)


def a_t4_pod(replica: Replica, name: str, mib: int) -> Pod:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    return replica.pod(name, annotations=T4_ONLY, containers=[a_container(limits=limits)])


def a_memory_quota(mib: int) -> ResourceQuota:
    metadata = {"name": "small", "namespace": "default", "resourceVersion": "1"}
    hard = {"limits.nvidia.com/gpumem": mib}
    return ResourceQuota.model_validate({"metadata": metadata, "spec": {"hard": hard}})


async def shown(replica: Replica, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the reason of a waiting pod in each place that shows one, and its text."""
    events: list[dict[str, str]] = []
    monkeypatch.setattr(replica.recorder, "record", lambda _, **event: events.append(event))
    replica.offer(pod)
    await replica.told()
    claim = replica.claim_of(pod)
    (event,) = events
    return {
        "condition": refused_reason(claim) or "",
        "event": event["reason"],
        "text": event["note"],
    }


async def test_a_full_quota_is_the_reason_although_most_devices_are_of_another_type(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_mixed_cluster(replica)
    replica.news.quota_changed(a_memory_quota(1000))
    found = await shown(replica, a_t4_pod(replica, "wants", 4000), monkeypatch)
    assert found["condition"] == found["event"] == "ResourceQuotaNotFit"
    assert found["text"].startswith("2/6 ResourceQuotaNotFit, 4/6 CardTypeMismatch; exceeded quota")


async def test_full_devices_are_the_reason_although_most_devices_are_of_another_type(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_mixed_cluster(replica)
    for name in ("first", "second"):
        replica.offer(a_t4_pod(replica, name, 16000))
        await replica.bound()
    found = await shown(replica, a_t4_pod(replica, "third", 4000), monkeypatch)
    assert found["condition"] == found["event"] == "CardInsufficientMemory"
    assert found["text"].startswith("2/6 CardInsufficientMemory, 4/6 CardTypeMismatch")


async def test_a_pod_that_waits_for_the_rarer_model_starves_and_gets_an_earmark(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_mixed_cluster(replica)
    for name in ("first", "second"):
        replica.offer(a_t4_pod(replica, name, 16000))
        await replica.bound()
    await shown(replica, a_t4_pod(replica, "third", 16000), monkeypatch)
    replica.time += 61
    await replica.settle()
    assert len(replica.state.earmarks) == 1
