"""A large request does not starve behind small ones: cards that become free are held for it."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_claim, a_device, a_node, a_request
from vgpu_api.conditions import ALLOCATED, find
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, ResourceQuota
from vgpu_operator.engine.device_view import view_of
from vgpu_operator.engine.starvation import MOST_HOLDS
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterAnswer, FilterRequest

AFTER_S = 60


def asking(mib: int, cards: int = 1) -> dict[str, int]:
    return {"nvidia.com/gpu": cards, "nvidia.com/gpumem": mib}


def filtered(replica: Any, pod: Pod) -> FilterAnswer:
    """What kube-scheduler is told about the pod at this moment."""
    names = list(replica.books.nodes)
    request = FilterRequest.read({"Pod": pod.to_wire(), "NodeNames": names})
    return filter_nodes(replica.engine, request)


def end(replica: Any, pod: Pod) -> None:
    """The pod and its claim are gone, and its cards are free."""
    claim = replica.claim_of(pod)
    key = (claim.metadata.namespace, claim.metadata.name)
    replica.engine.intake.pod_gone(pod.metadata.uid)
    replica.engine.intake.claim_gone(key, claim.metadata.uid)


def has_cards(replica: Any, pod: Pod) -> bool:
    return replica.engine.scheduler.reservations.of_pod(pod.metadata.uid) is not None


async def a_full_card(replica: Any) -> list[Pod]:
    """Four pods of 4 GiB on a card of 16 GiB."""
    replica.card(memory_mib=16384)
    small = [replica.pod(f"small-{number}", limits=asking(4096)) for number in range(4)]
    await replica.settle()
    assert all(has_cards(replica, pod) for pod in small)
    return small


async def a_starving_pod(replica: Any, mib: int = 16384) -> Pod:
    """A pod that was refused for want of room for a minute."""
    pod: Pod = replica.pod("zlarge", limits=asking(mib))
    await replica.settle()
    replica.time += AFTER_S
    await replica.settle()
    return pod


async def days(replica: Any, large: Pod, running: list[Pod]) -> int | None:
    """Every ten seconds a small pod ends and another is there at once, to take its place.

    Returns how many ended until the large pod had its card; None when it never had.
    """
    for number in range(100, 150):
        replica.time += 10
        end(replica, running.pop(0))
        fresh = replica.pod(f"small-{number}", limits=asking(4096))
        filtered(replica, fresh)  # before the operator's own loop had its turn
        await replica.settle()
        if has_cards(replica, large):
            return number - 99
        if has_cards(replica, fresh):
            running.append(fresh)
        if not running:
            return None
    return None


async def test_a_stream_of_small_pods_does_not_starve_a_large_one(replica: Any) -> None:
    """It waits a minute, then for the four that run at that time, and for nobody after them."""
    running = await a_full_card(replica)
    large = replica.pod("zlarge", limits=asking(16384))
    await replica.settle()
    ended = await days(replica, large, running)
    assert ended is not None
    assert ended <= AFTER_S // 10 + 4


async def test_without_holds_the_same_stream_starves_it(replica: Any) -> None:
    """The simulation is able to fail."""
    config = ClusterConfig.model_validate({"scheduling": {"starvationAfterSeconds": 0}})
    without = type(replica)(config=config)
    running = await a_full_card(without)
    large = without.pod("zlarge", limits=asking(16384))
    await without.settle()
    assert await days(without, large, running) is None
    assert len(running) == 4


async def test_what_becomes_free_is_held_also_between_two_rounds(replica: Any) -> None:
    small = await a_full_card(replica)
    await a_starving_pod(replica)
    end(replica, small[0])
    late = replica.pod("late", limits=asking(4096))
    answer = filtered(replica, late)
    assert answer.node_names == []
    assert answer.refused["node-1"] == (
        "1/1 CardInsufficientMemory; 1 on node-1 held for a request that has waited longer"
    )


async def test_a_claim_says_that_it_was_refused_in_favour_of_another(replica: Any) -> None:
    small = await a_full_card(replica)
    await a_starving_pod(replica)
    end(replica, small[0])
    late = replica.pod("late", limits=asking(4096))
    await replica.settle()
    condition = find(replica.claim_of(late).status.conditions, ALLOCATED)
    assert condition is not None
    assert "held for a request that has waited longer" in condition.message


async def test_who_is_refused_for_another_reason_is_not_told_of_holds(replica: Any) -> None:
    await a_full_card(replica)
    await a_starving_pod(replica)
    late = replica.pod("late", limits=asking(20000))
    assert filtered(replica, late).refused["node-1"] == "1/1 CardInsufficientMemory"


async def test_nothing_is_held_before_its_time(replica: Any) -> None:
    small = await a_full_card(replica)
    large = replica.pod("zlarge", limits=asking(16384))
    await replica.settle()
    replica.time += AFTER_S - 1
    await replica.settle()
    end(replica, small[0])
    late = replica.pod("late", limits=asking(4096))
    await replica.settle()
    assert has_cards(replica, late)
    assert not has_cards(replica, large)


async def test_a_hold_is_given_up_when_its_pod_goes(replica: Any) -> None:
    small = await a_full_card(replica)
    large = await a_starving_pod(replica)
    end(replica, small[0])
    late = replica.pod("late", limits=asking(4096))
    await replica.settle()
    assert not has_cards(replica, late)
    replica.engine.intake.pod_gone(large.metadata.uid)
    await replica.settle()
    assert has_cards(replica, late)
    assert replica.ledger.use_of("GPU-0").memory_mib == 16384


async def test_a_hold_is_given_up_when_its_pod_finds_room_elsewhere(replica: Any) -> None:
    small = await a_full_card(replica)
    large = await a_starving_pod(replica)
    end(replica, small[0])
    await replica.settle()
    replica.card(uuid="GPU-1", node="node-2", memory_mib=16384)
    await replica.settle()
    assert replica.claim_of(large).status.allocation.node_name == "node-2"
    assert replica.ledger.use_of("GPU-0").memory_mib == 3 * 4096


async def test_a_hold_moves_when_its_card_goes_out_of_order(replica: Any) -> None:
    small = await a_full_card(replica)
    replica.card(uuid="GPU-1", node="node-2", memory_mib=16384)
    other = replica.pod("other", limits=asking(16000))
    await replica.settle()
    await a_starving_pod(replica, 16384)
    (hold,) = replica.engine.scheduler.holds
    assert hold.node == "node-2"  # 16,000 MiB of one pod are less than 16,384 of four
    broken = a_device(
        uuid="GPU-1", node="node-2", memory_mib=16384, healthy=False, resource_version=2
    )
    replica.engine.intake.device_changed(broken)
    replica.time += AFTER_S
    await replica.settle()
    (hold,) = replica.engine.scheduler.holds
    assert hold.node == "node-1"
    assert has_cards(replica, other)
    assert has_cards(replica, small[0])


async def test_who_asks_for_what_no_card_could_give_gets_nothing_held(replica: Any) -> None:
    await a_full_card(replica)
    await a_starving_pod(replica, 20000)
    assert len(replica.engine.scheduler.holds) == 0


async def test_cards_are_held_for_a_few_at_a_time(replica: Any) -> None:
    for number in range(5):
        replica.card(uuid=f"GPU-{number}", index=number, memory_mib=16384)
    for number in range(5):
        replica.pod(f"a-{number}", limits=asking(10000))
    await replica.settle()
    for number in range(5):
        replica.pod(f"b-{number}", limits=asking(10000))
    await replica.settle()
    replica.time += AFTER_S
    await replica.settle()
    holds = list(replica.engine.scheduler.holds)
    assert len(holds) == MOST_HOLDS
    assert len({card for hold in holds for card in hold.cards}) == MOST_HOLDS


@pytest.mark.parametrize("ends", [1, 2])
async def test_who_wants_a_card_alone_is_not_overtaken_by_who_shares(
    replica: Any, ends: int
) -> None:
    """Compute is not asked for by the small ones, so memory alone must keep them away."""
    replica.card(memory_mib=16384)
    small = [replica.pod(f"small-{number}", limits=asking(2048)) for number in range(2)]
    await replica.settle()
    alone = replica.pod("zlarge", limits={**asking(1024), "nvidia.com/gpucores": 100})
    await replica.settle()
    replica.time += AFTER_S
    await replica.settle()
    for pod in small[:ends]:
        end(replica, pod)
    late = replica.pod("late", limits=asking(1024))
    filtered(replica, late)
    await replica.settle()
    assert not has_cards(replica, late)
    assert has_cards(replica, alone) == (ends == 2)


async def test_an_immediate_claim_does_not_starve_either(replica: Any) -> None:
    small = await a_full_card(replica)
    replica.claim(a_claim("now", requests=[a_request(memory="16Gi")], binding_mode="Immediate"))
    await replica.settle()
    replica.time += AFTER_S
    await replica.settle()
    for number, pod in enumerate(small):
        end(replica, pod)
        filtered(replica, replica.pod(f"late-{number}", limits=asking(4096)))
        await replica.settle()
    assert replica.api.claim("now")["status"]["allocation"]["nodeName"] == "node-1"


async def test_a_node_that_is_cordoned_gives_its_hold_up(replica: Any) -> None:
    await a_full_card(replica)
    await a_starving_pod(replica)
    assert len(replica.engine.scheduler.holds) == 1
    replica.engine.intake.node_changed(a_node("node-1", unschedulable=True, resource_version=2))
    await replica.settle()
    assert len(replica.engine.scheduler.holds) == 0


async def test_what_is_held_is_nobodys_quota_and_not_shown_as_given(replica: Any) -> None:
    small = await a_full_card(replica)
    await a_starving_pod(replica)
    quota = {
        "metadata": {"name": "q", "namespace": "default", "resourceVersion": "1"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": 20000}},
    }
    replica.ledger.apply_quota(ResourceQuota.model_validate(quota))
    before = replica.ledger.budget("default").memory_mib
    end(replica, small[0])
    replica.engine.scheduler.holds.gather()
    assert replica.ledger.use_of("GPU-0").memory_mib == 16384
    assert replica.ledger.budget("default").memory_mib == before + 4096
    (device,) = replica.ledger.devices("node-1")
    view = view_of(device, replica.ledger.holders("GPU-0"))
    assert view["allocated"]["memory"] == "12Gi"
    assert len(view["claims"]) == 3


async def test_a_hold_that_waits_makes_no_work_for_others(replica: Any) -> None:
    """Deciding the waiting claim again lifts its hold and puts it back: no change for anybody."""
    await a_full_card(replica)
    large = await a_starving_pod(replica)
    await replica.settle()
    cursor, _ = replica.ledger.changed_since(0)
    filtered(replica, large)
    await replica.settle()
    assert replica.ledger.changed_since(cursor)[1] == frozenset()


async def test_a_held_card_that_vanishes_takes_nobody_down_with_it(replica: Any) -> None:
    """A Filter may come before the hold is given up."""
    for number in range(2):
        replica.card(uuid=f"GPU-{number}", index=number, memory_mib=16384)
    running = [replica.pod(f"small-{number}", limits=asking(10000)) for number in range(2)]
    await replica.settle()
    large = replica.pod("zlarge", limits=asking(16000, cards=2))
    await replica.settle()
    replica.time += AFTER_S
    await replica.settle()
    (hold,) = replica.engine.scheduler.holds
    assert len(hold.cards) == 2
    replica.engine.intake.device_gone("gpu-0")
    for pod in running:
        end(replica, pod)
    assert filtered(replica, large).node_names == []
    await replica.settle()
    assert len(replica.engine.scheduler.holds) == 0
