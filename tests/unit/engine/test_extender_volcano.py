"""The extender's verbs for Volcano, in sessions that allocate gangs."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from replica import Replica
from vgpu_api.core import Pod
from vgpu_local.ports import free_ports
from vgpu_operator.config import Address
from vgpu_operator.engine.scheduling.reservation import LAPSED_S, OFFERED_S
from vgpu_operator.extender.server import ExtenderServer
from vgpu_operator.extender.volcano import UNSCHEDULABLE, allocate, deallocate, predicate

NODE = "node-1"


def asking(pod: Pod, node: str = NODE) -> dict[str, Any]:
    return {"task": {"Pod": pod.to_wire(), "NodeName": ""}, "node": {"Name": node}}


def of(pod: Pod, node: str = NODE) -> dict[str, Any]:
    return {"task": {"Pod": pod.to_wire(), "NodeName": node}}


def gang(replica: Replica, size: int) -> list[Pod]:
    """Return pods that need half a GPU each."""
    return [replica.pod(f"task-{number}") for number in range(size)]


def session(replica: Replica, pods: list[Pod]) -> list[Pod]:
    """Play Volcano with a job whose pods all need a node, and return those that got one.

    Volcano calls predicate and allocate for each pod, and takes all back if one fits nowhere.
    """
    placed: list[Pod] = []
    for pod in pods:
        if predicate(replica.engine, asking(pod))["code"] != 0:
            for given in placed:
                assert deallocate(replica.engine, of(given)) == {"errorMessage": ""}
            return []
        assert allocate(replica.engine, of(pod)) == {"errorMessage": ""}
        placed.append(pod)
    return placed


async def bound_by_volcano(replica: Replica, pod: Pod) -> None:
    wire = pod.to_wire()
    wire["spec"]["nodeName"] = NODE
    wire["metadata"]["resourceVersion"] = str(int(pod.metadata.resource_version) + 1)
    replica.news.pod_changed(Pod.model_validate(wire))
    await replica.settle()


async def test_a_gang_that_fits_has_its_devices_when_volcano_has_bound_it() -> None:
    replica = Replica()
    replica.device()
    for pod in session(replica, gang(replica, 2)):
        await bound_by_volcano(replica, pod)
        allocation = replica.claim_of(pod).status.allocation
        assert allocation is not None
        assert allocation.node_name == NODE
        replica.time += LAPSED_S
        await replica.settle()
        assert replica.claim_of(pod).status.allocation is not None


async def test_a_later_task_of_a_gang_sees_what_earlier_ones_were_given() -> None:
    replica = Replica()
    replica.device()
    first, second, third = gang(replica, 3)
    assert predicate(replica.engine, asking(third)) == {"status": "", "code": 0}
    for pod in (first, second):
        assert allocate(replica.engine, of(pod)) == {"errorMessage": ""}
    answer = predicate(replica.engine, asking(third))
    assert answer == {"status": "1/1 CardInsufficientMemory", "code": UNSCHEDULABLE}
    assert "CardInsufficientMemory" in allocate(replica.engine, of(third))["errorMessage"]


async def test_a_gang_that_does_not_fit_leaves_nothing_taken() -> None:
    """A tentative place that is left over would make the next job's predicate fail."""
    replica = Replica()
    replica.device()
    assert session(replica, gang(replica, 3)) == []
    await replica.settle()
    others = [replica.pod(f"other-{number}") for number in range(2)]
    assert session(replica, others) == others


async def test_a_place_that_is_given_again_before_it_has_gone_stays() -> None:
    replica = Replica()
    replica.device()
    (pod,) = gang(replica, 1)
    allocate(replica.engine, of(pod))
    deallocate(replica.engine, of(pod))
    allocate(replica.engine, of(pod))
    replica.time += OFFERED_S / 2
    await replica.settle()
    assert replica.reservation(pod) is not None


async def test_a_pod_that_volcano_has_bound_keeps_its_devices_whatever_is_taken_back() -> None:
    replica = Replica()
    replica.device()
    (pod,) = session(replica, gang(replica, 1))
    await bound_by_volcano(replica, pod)
    deallocate(replica.engine, of(pod))
    await replica.settle()
    assert replica.claim_of(pod).status.allocation is not None


async def test_a_pod_that_asks_for_no_device_goes_anywhere() -> None:
    replica = Replica()
    plain = replica.pod("plain", limits={})
    assert predicate(replica.engine, asking(plain)) == {"status": "", "code": 0}
    assert allocate(replica.engine, of(plain)) == {"errorMessage": ""}
    assert deallocate(replica.engine, of(plain)) == {"errorMessage": ""}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (None, "task: Required value"),
        ({"task": {}}, "task.Pod: Required value"),
        (
            {"task": {"Pod": {}}, "node": {"Name": 1}},
            "node.Name: Invalid value: 1: must be a string",
        ),
        ({"task": {"Pod": {"spec": 3}}, "node": {"Name": "n"}}, "Pod.spec: Invalid value: 3"),
    ],
)
async def test_a_question_that_cannot_be_read_is_answered_by_field_and_value(
    body: Any, text: str
) -> None:
    answer = predicate(Replica().engine, body)
    assert answer["code"] == UNSCHEDULABLE
    assert answer["status"].startswith(text)


async def test_the_verbs_are_served_where_volcano_is_told_to_ask() -> None:
    replica, port = Replica(), free_ports(1)[0]
    replica.device()
    (pod,) = gang(replica, 1)
    server = ExtenderServer(
        replica.engine, replica.binder, lambda: True, Address("127.0.0.1", port), None
    )
    prefix = f"http://127.0.0.1:{port}/volcano"
    async with server, aiohttp.ClientSession() as client:
        async with client.post(f"{prefix}/predicate", json=asking(pod)) as answer:
            assert await answer.json() == {"status": "", "code": 0}
        async with client.post(f"{prefix}/allocate", json=of(pod)) as answer:
            assert await answer.json() == {"errorMessage": ""}
