"""The rules of a `World` with every scheduler, which its state machines share."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from builders import use_of
from engine_world import World
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.errors import ServerError, Unknown

DEVICES = {"GPU-0": ("node-1", 10240), "GPU-1": ("node-1", 8192), "GPU-2": ("node-2", 10240)}
NODES = ("node-1", "node-2")
NAMES = st.sampled_from(["a", "b", "c"])
PICK = st.integers(0, 100)
SETTINGS = settings(
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class WorldStates(RuleBasedStateMachine):
    """Pods end and are deleted, answers get lost, events come late, and operators are replaced."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.api: Any = world.api
        self.api.before = self._before
        self.api.after = self._after
        self.failures = self.losses = self.born = 0

    def _before(self, verb: str, name: str) -> BaseException | None:
        if self.failures:
            self.failures -= 1
            return ServerError("failing", status=500)
        return None

    def _after(self, verb: str, name: str) -> BaseException | None:
        if self.losses:
            self.losses -= 1
            return Unknown("the answer was lost")
        return None

    def _pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.all(PODS)
        return found

    # Pods.

    @precondition(lambda self: self._pods())
    @rule(pick=PICK)
    def delete_a_pod_by_force(self, pick: int) -> None:
        pods = self._pods()
        self.api.vanish(PODS, pods[pick % len(pods)]["metadata"]["name"])
        self.world.collect_garbage()

    @precondition(lambda self: self._pods())
    @rule(pick=PICK)
    def a_pod_ends(self, pick: int) -> None:
        pods = self._pods()
        pod = copy.deepcopy(pods[pick % len(pods)])
        if pod["spec"].get("nodeName"):
            pod["status"]["phase"] = "Succeeded"
            self.api.put(PODS, pod)

    # The world.

    @rule(count=st.integers(1, 6))
    def news_come(self, count: int) -> None:
        self.world.deliver(count)

    @rule()
    def work(self) -> None:
        self.world.round()

    @rule(seconds=st.sampled_from([1.0, 10.0, 61.0, 301.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.operator.time += seconds

    @rule()
    def the_watch_is_lost(self) -> None:
        self.world.lose_the_watch()

    @rule(count=st.integers(1, 3))
    def answers_get_lost(self, count: int) -> None:
        self.losses += count

    @rule(count=st.integers(1, 3))
    def requests_fail(self, count: int) -> None:
        self.failures += count

    @rule()
    def writes_hang(self) -> None:
        self.api.gate.clear()

    @rule()
    def writes_go_on(self) -> None:
        self.api.gate.set()
        self.world.turn()

    @rule()
    def the_agent_starts_containers(self) -> None:
        self.world.agent_starts_what_it_may()

    @rule()
    def the_agent_releases(self) -> None:
        self.world.agent_releases_what_has_ended()

    @rule()
    def another_operator_leads(self) -> None:
        """Let another operator lead.

        The former one finished its writes before it gave up the Lease.
        """
        self.api.gate.set()
        self.world.turn(200)
        former = self.world.operator
        former.leading = False
        self.world.turn(200)
        self.api.news.clear()
        self.world.operator = self.world.started(former.time)

    @rule()
    def the_same_operator_leads_again(self) -> None:
        """Let the operator lose the Lease while it works, follow, and be elected again."""
        self.world.follow()
        self.world.lead_again()

    # What must hold.

    def nothing_is_left(self) -> None:
        """Check, once no pods and users' claims exist: no allocation, finalizer or reservation."""
        for _ in range(12):
            self.world.collect_garbage()
            self.world.deliver(1000)
            self.world.round()
            self.world.agent_releases_what_has_ended()
            self.world.operator.time += 61
            self.world.turn(50)
        assert self.api.all(VGPU_CLAIMS) == []
        ledger = self.world.operator.ledger
        used = {uuid: use_of(ledger, uuid).memory_mib for uuid in DEVICES}
        assert used == dict.fromkeys(DEVICES, 0)
        assert list(self.world.operator.state.reservations) == []
        assert self.world.running == {}
