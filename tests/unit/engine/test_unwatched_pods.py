"""Pods that the operator knows only from a Filter, and that the watch never delivered."""

from __future__ import annotations

import pytest

from builders import a_container, a_pod, use_of
from replica import Replica
from vgpu_api.core import Pod
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_operator.engine.cache import key_of
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterRequest

GPU = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


def a_told_pod(name: str = "pod-1", *, version: int) -> Pod:
    return a_pod(name, resource_version=version, containers=[a_container(limits=GPU)])


def ask(replica: Replica, pod: Pod, *nodes: str) -> list[str]:
    request = FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": list(nodes)})
    return filter_nodes(replica.engine, request).node_names


async def test_a_pod_that_a_whole_list_does_not_have_is_gone_and_decided_no_more(
    replica: Replica,
) -> None:
    """Its deletion is never delivered: the watch had not seen it. It may have been bound
    meanwhile, so what it was given stays until its node's agent reports it as free."""
    replica.device()
    pod = a_told_pod(version=50)
    assert ask(replica, pod, "node-1", "node-2") == ["node-1"]
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0").memory_mib == 8192
    claim = replica.claim_of(pod)
    replica.news.pods_listed(60, set())
    await replica.settle()
    assert replica.cache.pod(pod.metadata.uid) is None
    replica.api.vanish(VGPU_CLAIMS, claim.metadata.name)
    replica.news.claim_gone(key_of(claim), claim.metadata.uid)
    await replica.settle()
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0
    assert not [place for place in replica.api.objects if place[0] == VGPU_CLAIMS.plural]


@pytest.mark.parametrize(("listed", "uids"), [(49, ()), (60, ("uid-of-pod-1",))])
async def test_a_pod_that_is_newer_than_the_list_or_in_it_stays(
    replica: Replica, listed: int, uids: tuple[str, ...]
) -> None:
    replica.device()
    ask(replica, a_told_pod(version=50), "node-1")
    replica.news.pods_listed(listed, set(uids))
    await replica.settle()
    assert replica.cache.pod("uid-of-pod-1") is not None
    assert use_of(replica.ledger, "GPU-0").memory_mib == 8192


async def test_a_filter_that_asks_late_about_a_pod_of_the_past_reserves_nothing(
    replica: Replica,
) -> None:
    replica.device()
    replica.news.pods_listed(60, set())
    ask(replica, a_told_pod(version=60), "node-1")
    await replica.settle()
    assert replica.cache.pod("uid-of-pod-1") is None
    assert use_of(replica.ledger, "GPU-0").memory_mib == 0
    assert ask(replica, a_told_pod("later", version=61), "node-1", "node-2") == ["node-1"]
