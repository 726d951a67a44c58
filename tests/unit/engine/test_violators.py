"""The operator evicts pods whose claims violate their limits, at a limited rate."""

from __future__ import annotations

import pytest

from builders import a_container, a_pod
from replica import Replica
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import TooManyRequests
from vgpu_operator.engine.claims.violators import AGAIN_S

MINUTE_S = 60
SENTENCE = "held up to 9000 MiB of device GPU-0"


class Users:
    """Running pods with a claim each; a test lets their agents report violations."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        replica.state.evicts = True

    async def start(self, *names: str, node: str = "node-1") -> None:
        replica = self.replica
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
        for name in names:
            replica.offer(replica.pod(name, limits=limits), node)
            await replica.settle()
            containers = [a_container(limits=limits)]
            running = a_pod(
                name, node=node, phase="Running", resource_version=500, containers=containers
            )
            replica.api.put(PODS, running.to_wire())
            replica.news.pod_changed(running)
        await replica.settle()

    def report(self, name: str, status: str = "True") -> None:
        """Write the claim's condition like the agent."""
        key = self.replica.cache.pod(f"uid-of-{name}").claim
        raw = self.replica.api.claim(key.name)
        kept = [c for c in raw["status"]["conditions"] if c["type"] != "Violated"]
        violated = {
            "type": "Violated",
            "status": status,
            "reason": "MemoryLimitViolated",
            "message": SENTENCE,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        raw["status"]["conditions"] = [*kept, violated]
        self.replica.news.claim_changed(VGPUClaim.read(self.replica.api.put(VGPU_CLAIMS, raw)))

    async def evicted(self, seconds: float = 0.0) -> list[str]:
        """Return the pods that are evicted within a number of seconds, in order."""
        before = len(self.replica.api.log)
        end = self.replica.time + seconds
        await self.replica.settle()
        while self.replica.time < end:
            self.replica.time += 1
            await self.replica.settle()
        return [name for verb, name in self.replica.api.log[before:] if verb == "evict"]


@pytest.fixture
async def users(replica: Replica) -> Users:
    replica.device()
    return Users(replica)


async def test_a_violator_is_evicted_and_nobody_else(users: Users) -> None:
    await users.start("obeys", "takes")
    users.report("takes")
    assert await users.evicted() == ["takes"]


async def test_by_default_it_is_only_reported(users: Users) -> None:
    users.replica.state.evicts = False
    await users.start("takes")
    users.report("takes")
    assert await users.evicted(2 * AGAIN_S) == []


async def test_it_is_not_asked_for_again_before_a_minute_and_not_after_it_obeys(
    users: Users,
) -> None:
    await users.start("takes")
    users.report("takes")
    assert await users.evicted(AGAIN_S - 5) == ["takes"]
    assert await users.evicted(10) == ["takes"]  # a disruption budget may have protected it
    users.report("takes", "False")
    assert await users.evicted(3 * AGAIN_S) == []


async def on_nodes_of_their_own(users: Users, number: int) -> list[str]:
    """Create violators `p-0` … on as many nodes."""
    names = [f"p-{n}" for n in range(number)]
    for n, name in enumerate(names):
        users.replica.device(uuid=f"GPU-of-{n}", node=f"of-{n}")
        await users.start(name, node=f"of-{n}")
    for name in names:
        users.report(name)
    return names


async def test_at_most_ten_a_minute_are_evicted_in_the_cluster(users: Users) -> None:
    names = await on_nodes_of_their_own(users, 12)
    evicted = await users.evicted(MINUTE_S - 1)
    assert len(evicted) == 10
    assert set(evicted + await users.evicted(MINUTE_S)) == set(names)


async def test_at_most_two_a_minute_are_evicted_of_a_node(users: Users) -> None:
    names = [f"p-{n}" for n in range(5)]
    await users.start(*names)
    for name in names:
        users.report(name)
    evicted = await users.evicted(MINUTE_S - 1)
    assert len(evicted) == 2
    more = await users.evicted(5 * MINUTE_S)
    assert len(more) <= 10
    assert set(evicted + more) == set(names)


async def test_a_node_that_reports_all_its_pods_leaves_room_for_the_violators_of_others(
    users: Users,
) -> None:
    """Its agent may be compromised, and reports ten claims in violation all the time."""
    accused = [f"a-{n}" for n in range(10)]
    await users.start(*accused)
    for name in accused:
        users.report(name)
    evicted = await users.evicted(MINUTE_S)
    assert len(evicted) <= 3
    names = await on_nodes_of_their_own(users, 8)
    evicted = await users.evicted(MINUTE_S)
    assert set(names) <= set(evicted)


async def test_pods_that_disruption_budgets_protect_do_not_use_up_what_their_node_may_have_evicted(
    users: Users,
) -> None:
    """The first retry comes after a minute, and each further one after twice the time."""
    protected, other = ["a-0", "a-1", "a-2"], "z"
    await users.start(*protected, other)
    budget = TooManyRequests("Cannot evict pod: it would violate its budget", status=429)
    users.replica.api.before = lambda verb, name: (
        budget if verb == "create pods" and name in protected else None
    )
    for name in (*protected, other):
        users.report(name)
    assert other in await users.evicted(10 * MINUTE_S)


async def test_what_a_disruption_budget_refuses_is_said_in_an_event(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(
        users.replica.recorder,
        "record",
        lambda regarding, *, reason, note, **_: said.append((reason, note)),
    )
    await users.start("takes")
    budget = TooManyRequests("Cannot evict pod: it would violate its budget", status=429)
    users.replica.api.before = lambda verb, _: budget if verb == "evict" else None
    users.report("takes")
    assert await users.evicted() == []
    ((_, note),) = [event for event in said if event[0] == "NotEvicted"]
    assert SENTENCE in note
    assert "budget" in note
    users.replica.api.before = lambda verb, name: None
    assert await users.evicted(AGAIN_S + 1) == ["takes"]
    assert [reason for reason, _ in said if reason == "Evicted"] == ["Evicted"]


async def test_a_pod_that_ends_already_is_left_alone(users: Users) -> None:
    await users.start("takes")
    ending = a_pod("takes", node="node-1", phase="Succeeded", resource_version=900,
                   containers=[a_container(limits={"nvidia.com/gpu": 1})])  # fmt: skip
    users.replica.news.pod_changed(ending)
    users.report("takes")
    assert await users.evicted(AGAIN_S) == []
