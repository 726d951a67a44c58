"""A claim is refused only if a search by brute force finds no assignment of requests to devices.

The rules are repeated here, and every assignment is tried. When a container starts, it needs room
on the device beside other claims and the containers that still run; an init container has ended
when the next one starts. The sum over all devices of the claim's peak use must be within the quota
of its namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.placement import Budget, place

GIB = 1024


@dataclass(frozen=True)
class Card:
    """A device with its capacity and the use of other claims."""

    memory: int
    cores: int
    slots: int
    used: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Ask:
    """A container's request of each of `count` devices; memory in MiB, or percent of a device."""

    phase: str
    count: int
    memory: int | None
    percent: int | None
    cores: int

    def memory_on(self, card: Card) -> int:
        return card.memory * (self.percent or 0) // 100 if self.memory is None else self.memory


@dataclass(frozen=True)
class Quota:
    """The largest amounts that the claim may use; None means no limit."""

    memory: int | None = None
    cores: int | None = None
    devices: int | None = None


Chosen = tuple[tuple[int, ...], ...]
"""The indexes of each request's devices on the node."""


def assignments(cards: Sequence[Card], asks: Sequence[Ask], quota: Quota) -> Iterator[Chosen]:
    """Yield every way to serve all requests on one node."""
    for chosen in _ways(cards, asks, ()):
        if is_within(cards, asks, chosen, quota):
            yield chosen


def _ways(cards: Sequence[Card], asks: Sequence[Ask], before: Chosen) -> Iterator[Chosen]:
    if len(before) == len(asks):
        yield before
        return
    for devices in combinations(range(len(cards)), asks[len(before)].count):
        if all(has_room(cards, asks, before, device) for device in devices):
            yield from _ways(cards, asks, (*before, devices))


def has_room(cards: Sequence[Card], asks: Sequence[Ask], before: Chosen, device: int) -> bool:
    """Return True if a device fits a container in addition to those that started before it."""
    card, ask = cards[device], asks[len(before)]
    running = [
        each
        for each, devices in zip(asks, before, strict=False)
        if each.phase == "App" and device in devices
    ]
    memory = card.used[0] + sum(each.memory_on(card) for each in running)
    cores = card.used[1] + sum(each.cores for each in running)
    slots = card.used[2] + len(running)
    if any(each.cores == 100 for each in running):
        return False  # it has the device alone
    alone = ask.cores == 100
    return (
        slots < card.slots
        and 1 <= ask.memory_on(card) <= card.memory - memory
        and max(ask.cores, 1) <= card.cores - cores
        and not (alone and slots)
    )


def is_within(cards: Sequence[Card], asks: Sequence[Ask], chosen: Chosen, quota: Quota) -> bool:
    """Return True if the claim's peaks are within the quota."""

    def worst(amounts: Sequence[int]) -> int:
        running = most = 0
        for ask, amount in zip(asks, amounts, strict=True):
            most = max(most, running + amount)
            running += amount if ask.phase == "App" else 0
        return most

    memory = cores = 0
    for device, card in enumerate(cards):
        here = [device in devices for devices in chosen]
        memory += worst([ask.memory_on(card) * on for ask, on in zip(asks, here, strict=True)])
        cores += worst([ask.cores * on for ask, on in zip(asks, here, strict=True)])
    devices = worst([ask.count for ask in asks])
    totals = zip((memory, cores, devices), (quota.memory, quota.cores, quota.devices), strict=True)
    return all(limit is None or total <= limit for total, limit in totals)


cards = st.builds(
    Card,
    memory=st.sampled_from((16 * GIB, 24 * GIB)),
    cores=st.just(100),
    slots=st.sampled_from((2, 10)),
)
uses = st.sampled_from(((0, 0, 0), (4 * GIB, 0, 1), (8 * GIB, 50, 1), (12 * GIB, 30, 2)))
asks = st.builds(
    Ask,
    phase=st.sampled_from(("App", "App", "Init")),
    count=st.sampled_from((1, 1, 1, 2)),
    memory=st.sampled_from((4 * GIB, 8 * GIB, 12 * GIB, 16 * GIB)),
    percent=st.none(),
    cores=st.sampled_from((0, 0, 30, 50, 100)),
) | st.builds(
    Ask,
    phase=st.sampled_from(("App", "App", "Init")),
    count=st.just(1),
    memory=st.none(),
    percent=st.sampled_from((50, 100)),
    cores=st.sampled_from((0, 50)),
)
quotas = st.builds(
    Quota,
    memory=st.sampled_from((None, None, 16 * GIB, 24 * GIB, 32 * GIB)),
    cores=st.sampled_from((None, None, 60, 100, 150)),
    devices=st.sampled_from((None, None, 1, 2, 3)),
)


@st.composite
def nodes(draw: st.DrawFn) -> list[Card]:
    """Draw up to four devices of at most two kinds, some of them in use."""
    kinds = draw(st.lists(cards, min_size=1, max_size=2))
    number = draw(st.integers(1, 4))
    return [replace(draw(st.sampled_from(kinds)), used=draw(uses)) for _ in range(number)]


def decided(
    node: Sequence[Card], wanted: Sequence[Ask], quota: Quota, policy: str
) -> Chosen | None:
    """Return the answer of placement as indexes of devices on the node."""
    facts = [
        device_facts(f"GPU-{at}", index=at, memory_mib=card.memory, cores=card.cores,
                     slots=card.slots)
        for at, card in enumerate(node)
    ]  # fmt: skip
    used = {f"GPU-{at}": Use(*card.used) for at, card in enumerate(node)}
    demand = an_ask(
        *(a_request(name=f"c{number}", **_amounts(ask)) for number, ask in enumerate(wanted)),
        device=[policy],
    )
    budget = Budget(quota.memory, quota.cores, quota.devices)
    plan = place(some_columns(*facts, used=used), demand, budget=budget)
    if plan.refused:
        return None
    return tuple(
        tuple(sorted(g.index for g in plan.grants if g.request == f"c{number}"))
        for number in range(len(wanted))
    )


def _amounts(ask: Ask) -> dict[str, Any]:
    size = {"memory_percent": ask.percent} if ask.memory is None else {"memory": f"{ask.memory}Mi"}
    return {"phase": ask.phase, "count": ask.count, "cores": ask.cores, **size}


def test_a_search_that_is_stopped_says_so() -> None:
    """Nine containers on eight devices of different sizes, each with room for one of them."""
    facts = [device_facts(f"GPU-{at}", index=at, memory_mib=10 * GIB + at) for at in range(8)]
    nine = an_ask(*(a_request(name=f"c{number}", memory="6Gi") for number in range(9)))
    plan = place(some_columns(*facts), nine)
    assert plan.refused
    assert plan.text == "1/1 NodeSearchStopped"


def test_a_search_in_vain_says_that_there_is_no_room() -> None:
    facts = [device_facts(f"GPU-{at}", index=at, memory_mib=10 * GIB) for at in range(2)]
    three = an_ask(*(a_request(name=f"c{number}", memory="6Gi") for number in range(3)))
    plan = place(some_columns(*facts), three)
    assert plan.refused
    assert plan.text == "2/2 CardInsufficientMemory"


policies = st.sampled_from(("Binpack", "Spread", "BestFit", "IdleFirst"))


@given(nodes(), st.lists(asks, min_size=2, max_size=3), quotas, policies)
def test_a_claim_of_several_requests_is_served_wherever_an_assignment_exists(
    node: list[Card], wanted: list[Ask], quota: Quota, policy: str
) -> None:
    ways = set(assignments(node, wanted, quota))
    chosen = decided(node, wanted, quota, policy)
    assert chosen in ways if ways else chosen is None


@given(nodes(), asks, policies)
def test_a_claim_of_one_request_is_served_wherever_it_fits(
    node: list[Card], ask: Ask, policy: str
) -> None:
    ways = set(assignments(node, [ask], Quota()))
    chosen = decided(node, [ask], Quota(), policy)
    assert chosen in ways if ways else chosen is None
