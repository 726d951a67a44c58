"""kube-scheduler is told what it cannot see, and no more often than that helps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from builders import a_claim, a_container, a_device, a_pod, a_request, an_allocation
from vgpu_api.core import Pod, ResourceQuota
from vgpu_api.core.pod import PodStatus
from vgpu_api.names import ANNOTATION_POKE
from vgpu_api.v1alpha1 import Condition
from vgpu_client.errors import Unreachable
from vgpu_operator.engine.clock import Clock
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.hints import FILTER_WITHIN_S, POKE_EVERY_S, Hints
from vgpu_operator.engine.reservations import Reservation
from vgpu_operator.engine.status import Wish
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterRequest

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}


class Pods:
    """Takes patches of pods."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, str | None, Mapping[str, Any]]] = []
        self.fails = False

    async def merge_patch(
        self,
        resource: Any,
        name: str,
        changes: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> None:
        if self.fails:
            raise Unreachable("no answer")
        self.patches.append((name, subresource, changes))


class Desk:
    """Hints with a clock that the test sets."""

    def __init__(self) -> None:
        self.pods: Any = Pods()
        self.time = 100.0
        self.wanted = True
        self._waiting: list[tuple[float, Callable[[], None]]] = []
        self.hints = Hints(
            self.pods,
            clock=Clock(monotonic=lambda: self.time, unix=lambda: 1.7e9 + self.time),
            wanted=lambda _: self.wanted,
            later=lambda seconds, call: self._waiting.append((self.time + seconds, call)),
        )

    async def passes(self, seconds: float) -> None:
        """So much time passes, and what is due is done."""
        self.time += seconds
        due = [call for at, call in self._waiting if at <= self.time]
        self._waiting = [item for item in self._waiting if item[0] > self.time]
        for call in due:
            call()
        await self.hints.drain()

    def nominations(self) -> list[Any]:
        return [
            changes["status"]["nominatedNodeName"]
            for _, subresource, changes in self.pods.patches
            if subresource == "status"
        ]

    def pokes(self) -> int:
        return sum(subresource is None for _, subresource, _ in self.pods.patches)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


def a_consumer(*, set_aside: bool = False, nominated: str = "") -> Consumer:
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    status = PodStatus(nominated_node_name=nominated, conditions=[condition] if set_aside else [])
    pod = a_pod(containers=[a_container(limits=LIMITS)]).model_copy(update={"status": status})
    return Consumer(pod, ask=None, claim=("default", "c"), owned=True)  # type: ignore[arg-type]


def a_reservation(node: str = "node-1") -> Reservation:
    wish = Wish.allocated(an_allocation(node=node), None)
    return Reservation(claim=("default", "c"), pod_uid="uid-of-pod-1", wish=wish, since=0.0)


async def test_a_pod_that_no_filter_asks_about_soon_is_nominated_once(desk: Desk) -> None:
    desk.hints.reserved(a_consumer(), a_reservation(), in_vain=False)
    await desk.passes(FILTER_WITHIN_S / 2)
    assert desk.pods.patches == []
    await desk.passes(FILTER_WITHIN_S)
    await desk.passes(60)
    assert desk.nominations() == ["node-1"]
    assert desk.pokes() == 0
    ((_, _, changes),) = desk.pods.patches
    assert changes["metadata"] == {"uid": "uid-of-pod-1"}


async def test_where_the_filter_comes_promptly_nothing_is_written(desk: Desk) -> None:
    reservation = a_reservation()
    desk.hints.reserved(a_consumer(), reservation, in_vain=False)
    reservation.asked = desk.time
    await desk.passes(FILTER_WITHIN_S)
    assert desk.pods.patches == []


@pytest.mark.parametrize("why", ["binding", "moved", "named already"])
async def test_a_nomination_that_is_not_needed_is_not_written(desk: Desk, why: str) -> None:
    reservation = a_reservation()
    consumer = a_consumer(nominated="node-1" if why == "named already" else "")
    desk.hints.reserved(consumer, reservation, in_vain=False)
    reservation.binding = why == "binding"
    desk.wanted = why != "moved"
    await desk.passes(FILTER_WITHIN_S)
    assert desk.pods.patches == []


async def test_a_nomination_is_taken_back_with_its_reservation_and_only_then(desk: Desk) -> None:
    consumer = a_consumer()
    desk.hints.withdrawn(consumer)
    await desk.passes(0)
    assert desk.pods.patches == []
    desk.hints.reserved(consumer, a_reservation(), in_vain=False)
    await desk.passes(FILTER_WITHIN_S)
    desk.hints.withdrawn(consumer)
    await desk.passes(0)
    assert desk.nominations() == ["node-1", None]


async def test_a_pod_whose_filter_was_refused_is_poked_at_once(desk: Desk) -> None:
    desk.hints.reserved(a_consumer(), a_reservation(), in_vain=True)
    await desk.passes(0)
    ((name, _, changes),) = desk.pods.patches
    assert name == "pod-1"
    assert ANNOTATION_POKE in changes["metadata"]["annotations"]


async def test_a_pod_is_poked_once_in_a_few_seconds(desk: Desk) -> None:
    for _ in range(5):
        desk.hints.reserved(a_consumer(), a_reservation(), in_vain=True)
        await desk.passes(FILTER_WITHIN_S / 10)
    assert desk.pokes() == 1
    await desk.passes(POKE_EVERY_S)
    assert desk.pokes() == 2
    await desk.passes(POKE_EVERY_S)
    assert desk.pokes() == 2


async def test_a_pod_set_aside_before_this_replica_led_is_woken(desk: Desk) -> None:
    """Its Filter was refused by the predecessor; only the pod itself says so."""
    desk.hints.reserved(a_consumer(set_aside=True), a_reservation(), in_vain=False)
    await desk.passes(FILTER_WITHIN_S)
    assert (desk.nominations(), desk.pokes()) == (["node-1"], 1)


async def test_a_hint_that_cannot_be_written_is_lost_and_nothing_else(desk: Desk) -> None:
    desk.pods.fails = True
    desk.hints.reserved(a_consumer(), a_reservation(), in_vain=True)
    await desk.passes(FILTER_WITHIN_S)
    assert desk.pods.patches == []


async def test_a_poke_that_cannot_be_written_is_written_as_soon_as_it_can(desk: Desk) -> None:
    desk.pods.fails = True
    reservation = a_reservation()
    desk.hints.reserved(a_consumer(), reservation, in_vain=True)
    for _ in range(3):
        await desk.passes(POKE_EVERY_S)
    desk.pods.fails = False
    await desk.passes(POKE_EVERY_S)
    await desk.passes(POKE_EVERY_S)
    assert desk.pokes() == 1
    desk.pods.fails = True
    desk.hints.reserved(a_consumer(), reservation, in_vain=True)
    await desk.passes(POKE_EVERY_S)
    desk.pods.fails, desk.wanted = False, False  # it needs none any more
    await desk.passes(POKE_EVERY_S)
    assert desk.pokes() == 1


# In the engine: who is poked.


def filtered(replica: Any, pod: Pod) -> list[str]:
    request = FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": list(replica.books.nodes)})
    return list(filter_nodes(replica.engine, request).node_names)


async def pokes(replica: Any) -> list[str]:
    await replica.settle()
    await replica.engine.hints.drain()
    return [name for verb, name in replica.api.log if verb == "merge"]


async def test_a_recovered_card_wakes_exactly_the_pods_that_it_serves(replica: Any) -> None:
    replica.card(memory_mib=16384, healthy=False)
    for name in ("a", "b", "c"):
        assert filtered(replica, replica.pod(name, limits=LIMITS)) == []
    assert await pokes(replica) == []
    replica.engine.intake.device_changed(a_device(memory_mib=16384, resource_version=2))
    assert await pokes(replica) == ["a", "b"]


async def test_an_uncordoned_card_wakes_who_waits_for_it(replica: Any) -> None:
    replica.card(cordoned=True)
    assert filtered(replica, replica.pod("a", limits=LIMITS)) == []
    assert await pokes(replica) == []
    replica.engine.intake.device_changed(a_device(resource_version=2))
    assert await pokes(replica) == ["a"]


async def test_an_expired_reservation_wakes_who_waits_for_its_cards(replica: Any) -> None:
    replica.card(memory_mib=8192)
    replica.pod("holds", limits=LIMITS)
    await replica.settle()
    assert filtered(replica, replica.pod("waits", limits=LIMITS)) == []
    assert await pokes(replica) == []
    replica.time += 301
    for _ in range(3):
        await replica.settle()
        await asyncio.sleep(0)
    assert await pokes(replica) == ["waits"]


async def test_who_would_still_not_fit_is_left_alone(replica: Any) -> None:
    replica.card(memory_mib=8192, healthy=False)
    big = replica.pod("big", limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000})
    assert filtered(replica, big) == []
    replica.engine.intake.device_changed(a_device(memory_mib=8192, resource_version=2))
    assert await pokes(replica) == []


def a_quota(version: int, mib: int) -> ResourceQuota:
    return ResourceQuota.model_validate(
        {
            "metadata": {"name": "q", "namespace": "default", "resourceVersion": str(version)},
            "spec": {"hard": {"limits.nvidia.com/gpumem": mib}},
        }
    )


async def test_a_raised_quota_wakes_who_it_kept_waiting(replica: Any) -> None:
    replica.card(memory_mib=16384)
    replica.engine.intake.quota_changed(a_quota(1, 8192))
    first, second = replica.pod("a", limits=LIMITS), replica.pod("b", limits=LIMITS)
    await replica.settle()
    assert filtered(replica, first) == ["node-1"]
    assert filtered(replica, second) == []
    assert await pokes(replica) == []
    replica.engine.intake.quota_changed(a_quota(2, 16384))
    assert await pokes(replica) == ["b"]


async def test_who_waits_for_a_quota_gets_no_cards_held(replica: Any) -> None:
    replica.card(memory_mib=16384)
    replica.engine.intake.quota_changed(a_quota(1, 4096))
    replica.pod("a", limits=LIMITS)
    await replica.settle()
    replica.time += 61
    await replica.settle()
    assert len(replica.engine.scheduler.holds) == 0


async def test_an_immediate_claim_is_decided_when_its_quota_goes(replica: Any) -> None:
    replica.card(memory_mib=16384)
    replica.engine.intake.quota_changed(a_quota(1, 4096))
    replica.claim(a_claim("now", requests=[a_request(memory="8Gi")], binding_mode="Immediate"))
    await replica.settle()
    assert "allocation" not in replica.api.claim("now")["status"]
    replica.engine.intake.quota_gone("default", "q")
    await replica.settle()
    assert "allocation" in replica.api.claim("now")["status"]
