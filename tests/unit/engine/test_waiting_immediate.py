"""Immediate claims wait by priority and age like pods, and get freed devices at once."""

from __future__ import annotations

from builders import a_claim, a_device, a_request
from replica import Replica
from vgpu_api.config import ClusterConfig


def an_immediate(name: str, priority: int, *, created: str | None = None, memory: str = "16Gi"):
    return a_claim(
        name,
        requests=[a_request(memory=memory)],
        binding_mode="Immediate",
        scheduling_priority=priority,
        metadata={"creation_timestamp": created},
    )


def has_devices(replica: Replica, name: str) -> bool:
    return "allocation" in replica.api.claim(name).get("status", {})


async def test_a_recovered_device_serves_the_most_important_claim_at_once(replica: Replica) -> None:
    replica.device(memory_mib=16384, healthy=False)
    for name, priority in (("low", 0), ("high", 9)):
        replica.claim(an_immediate(name, priority))
    await replica.settle()
    replica.news.device_changed(a_device(memory_mib=16384, resource_version=2))
    await replica.settle()
    assert has_devices(replica, "high")
    assert not has_devices(replica, "low")


async def test_of_equals_the_oldest_is_served_first(replica: Replica) -> None:
    replica.device(memory_mib=16384, healthy=False)
    for name, second in (("a", 2), ("b", 1), ("c", 3)):
        replica.claim(an_immediate(name, 0, created=f"2026-01-01T00:00:0{second}Z"))
    replica.news.device_changed(a_device(memory_mib=16384, resource_version=2))
    await replica.settle()
    assert [name for name in "abc" if has_devices(replica, name)] == ["b"]


async def test_no_claim_is_more_important_than_the_administrator_allows(replica: Replica) -> None:
    """Any user may write a priority into a claim; a pod's priority comes from a PriorityClass."""
    config = ClusterConfig.model_validate({"scheduling": {"maxClaimPriority": 10}})
    bounded = type(replica)(config=config)
    bounded.device(memory_mib=16384, healthy=False)
    for name, priority, second in (("a", 10, 1), ("b", 1_000_000, 2)):
        created = f"2026-01-01T00:00:0{second}Z"
        bounded.claim(an_immediate(name, priority, created=created))
    bounded.news.device_changed(a_device(memory_mib=16384, resource_version=2))
    await bounded.settle()
    assert has_devices(bounded, "a")
    assert not has_devices(bounded, "b")


async def test_a_claim_that_asks_for_less_is_decided_at_once(replica: Replica) -> None:
    replica.device(memory_mib=16384)
    claim = a_claim("now", requests=[a_request(memory="20Gi")], binding_mode="Immediate")
    replica.claim(claim)
    await replica.settle()
    assert "allocation" not in replica.api.claim("now").get("status", {})
    smaller = replica.api.claim("now")
    smaller["spec"]["requests"][0]["memory"] = "8Gi"
    smaller["metadata"]["generation"] = 2
    replica.claim(type(claim).read(smaller))
    await replica.settle()
    assert "allocation" in replica.api.claim("now")["status"]


async def test_an_important_claim_brings_no_other_of_its_size_along(replica: Replica) -> None:
    """Two devices recover at once; a claim of another size is in between."""
    for uuid in ("GPU-0", "GPU-1"):
        replica.device(uuid=uuid, memory_mib=16384, healthy=False)
    for name, priority, memory in (("high", 9, "16Gi"), ("low", 0, "16Gi"), ("middle", 5, "15Gi")):
        replica.claim(an_immediate(name, priority, memory=memory))
    for uuid in ("GPU-0", "GPU-1"):
        device = a_device(uuid=uuid, memory_mib=16384, resource_version=2)
        replica.news.device_changed(device)
    await replica.settle()
    assert has_devices(replica, "high")
    assert has_devices(replica, "middle")
    assert not has_devices(replica, "low")
