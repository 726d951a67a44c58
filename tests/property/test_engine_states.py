"""Pods and claims come, go and change in any order, while answers are lost and events come late."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from builders import a_claim, a_container, a_pod, a_request, use_of
from comes_back import ChangingWorld, ComesBack, kept_of_objects
from engine_world import World
from replica import Replica
from vgpu_api.core import Container
from vgpu_api.names import (
    ANNOTATION_CLAIM,
    ANNOTATION_CLAIM_TEMPLATE,
    ANNOTATION_SLOTS_ADDED,
)
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_client.errors import ServerError, Unknown
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest
from world_states import DEVICES, NAMES, NODES, PICK, SETTINGS, WorldStates

MIB = st.sampled_from([2048, 3072, 5120, 8192])


class EngineStates(WorldStates):
    """The engine's invariants: no device is over capacity, nothing in use is freed, no leaks."""

    def __init__(self, world: World | None = None) -> None:
        super().__init__(world or World(DEVICES))
        self.lost_bindings = self.failed_reads = 0
        self.offers: dict[str, str] = {}  # pod UID → the node that Filter answered

    def _before(self, verb: str, name: str) -> BaseException | None:
        if verb == "get" and self.failed_reads:
            self.failed_reads -= 1
            return ServerError("failing", status=500)
        return super()._before(verb, name)

    def _after(self, verb: str, name: str) -> BaseException | None:
        if verb == "bind" and self.lost_bindings:
            self.lost_bindings -= 1
            return Unknown("the answer was lost")
        return super()._after(verb, name)

    # Actions of users.

    def _create(
        self,
        name: str,
        annotations: dict[str, str],
        limits: dict[str, Any],
        init: Sequence[Container] = (),
    ) -> None:
        if any(pod["metadata"]["name"] == name for pod in self._pods()):
            return
        self.born += 1
        pod = a_pod(
            name,
            uid=f"{self.born:08x}-{name}",
            annotations=annotations,
            containers=[a_container(limits=limits)],
            init_containers=init,
        )
        self.api.put(PODS, pod.to_wire())

    @rule(name=NAMES, mib=MIB)
    def create_a_pod(self, name: str, mib: int) -> None:
        self._create(f"pod-{name}", {}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib})

    @rule(
        name=NAMES, mib=MIB, inits=st.lists(st.tuples(st.booleans(), MIB), min_size=1, max_size=3)
    )
    def create_a_pod_with_init_containers(
        self, name: str, mib: int, inits: list[tuple[bool, int]]
    ) -> None:
        """Create a pod with ordinary init containers and sidecars in any order."""
        containers = [
            a_container(
                f"i{number}",
                limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": init_mib},
                restart_policy="Always" if is_sidecar else None,
            )
            for number, (is_sidecar, init_mib) in enumerate(inits)
        ]
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        self._create(f"pod-{name}", {}, limits, containers)

    @rule(
        name=NAMES, claim=NAMES, key=st.sampled_from([ANNOTATION_CLAIM, ANNOTATION_CLAIM_TEMPLATE])
    )
    def create_a_pod_that_names_a_claim(self, name: str, claim: str, key: str) -> None:
        self._create(f"native-{name}", {key: claim, ANNOTATION_SLOTS_ADDED: "main"}, {})

    @rule(
        name=NAMES,
        mib=MIB,
        mode=st.sampled_from(["WaitForFirstConsumer", "Immediate"]),
        ttl=st.sampled_from([None, 0, 100]),
    )
    def create_a_claim(self, name: str, mib: int, mode: str, ttl: int | None) -> None:
        if (VGPU_CLAIMS.plural, "default", name) in self.api.objects:
            return
        self.born += 1
        claim = a_claim(
            name,
            uid=f"claim-{self.born}",
            requests=[a_request(memory=f"{mib}Mi")],
            binding_mode=mode,
            ttl_seconds_after_unused=ttl,
        )
        wire = claim.to_wire()
        wire.pop("status", None)
        self.api.put(VGPU_CLAIMS, wire)

    @rule(name=NAMES, mib=MIB)
    def change_a_claim(self, name: str, mib: int) -> None:
        raw = copy.deepcopy(self.api.objects.get((VGPU_CLAIMS.plural, "default", name)))
        if raw is None or (raw.get("status") or {}).get("allocation"):
            return
        raw["spec"]["requests"][0]["memory"] = f"{mib}Mi"
        raw["metadata"]["generation"] = raw["metadata"].get("generation", 1) + 1
        self.api.put(VGPU_CLAIMS, raw)

    @rule(name=NAMES)
    def delete_a_claim(self, name: str) -> None:
        if (VGPU_CLAIMS.plural, "default", name) in self.api.objects:
            self.world.delete_claim(name)

    @precondition(lambda self: self._pods())
    @rule(pick=PICK, claim=NAMES)
    def edit_a_pod(self, pick: int, claim: str) -> None:
        pods = self._pods()
        pod = copy.deepcopy(pods[pick % len(pods)])
        pod["metadata"].setdefault("annotations", {})[ANNOTATION_CLAIM] = claim
        pod["metadata"]["annotations"].pop(ANNOTATION_CLAIM_TEMPLATE, None)
        self.api.put(PODS, pod)

    # Actions of kube-scheduler.

    @precondition(lambda self: self._pods())
    @rule(pick=PICK, nodes=st.sets(st.sampled_from(NODES), min_size=1))
    def filter(self, pick: int, nodes: set[str]) -> None:
        pods = [p for p in self._pods() if not p["spec"].get("nodeName")]
        if not pods:
            return
        self._filter(pods[pick % len(pods)], nodes)

    @precondition(lambda self: any(p["spec"].get("nodeName") for p in self._pods()))
    @rule(pick=PICK, nodes=st.sets(st.sampled_from(NODES), min_size=1))
    def filter_of_a_bound_pod(self, pick: int, nodes: set[str]) -> None:
        """Call Filter with an old version of a bound pod, from before it was bound."""
        cache = self.world.operator.cache
        bound = [
            pod
            for pod in self._pods()
            if pod["spec"].get("nodeName") and cache.pod(pod["metadata"]["uid"]) is not None
        ]
        if not bound:
            return
        pod = copy.deepcopy(bound[pick % len(bound)])
        del pod["spec"]["nodeName"]
        pod["status"] = {"phase": "Pending"}
        pod["metadata"]["resourceVersion"] = "1"
        self._filter(pod, nodes)

    def _filter(self, pod: dict[str, Any], nodes: set[str]) -> None:
        request = FilterRequest.read({"Pod": copy.deepcopy(pod), "NodeNames": sorted(nodes)})

        async def ask() -> list[str]:
            answer = filter_nodes(self.world.operator.engine, request)
            return list(answer.node_names)

        chosen = self.world.loop.run_until_complete(ask())
        uid = pod["metadata"]["uid"]
        self.offers.pop(uid, None)
        if chosen:
            assert set(chosen) <= nodes
            self.offers[uid] = chosen[0]

    @precondition(lambda self: self.offers)
    @rule(pick=PICK, unknown=st.booleans())
    def bind(self, pick: int, unknown: bool) -> None:
        """Bind a pod; with `unknown`, the Binding's outcome is lost and reads fail for a while."""
        self.lost_bindings, self.failed_reads = (1, 5) if unknown else (0, 0)
        self._bind(sorted(self.offers)[pick % len(self.offers)])

    @precondition(lambda self: self._pods())
    @rule(pick=PICK, is_told=st.booleans())
    def a_pod_gets_to_run(self, pick: int, is_told: bool) -> None:
        """Start a pod in one step, whether or not the operator sees its end."""
        pods = [p for p in self._pods() if not p["spec"].get("nodeName")]
        if not pods:
            return
        self.api.gate.set()
        self.world.deliver(100)
        self.world.round()
        self._filter(pods[pick % len(pods)], set(NODES))
        uid = pods[pick % len(pods)]["metadata"]["uid"]
        if uid in self.offers:
            self._bind(uid)
            self.world.agent_starts_what_it_may()
        if is_told:
            self.world.deliver(100)

    def _bind(self, uid: str) -> None:
        node = self.offers.pop(uid)
        request = BindRequest("default", uid.split("-", 1)[1], uid, node)

        async def start() -> None:
            task = self.world.loop.create_task(self.world.operator.binder.bind(request))
            self.world.binds.append(task)

        self.world.loop.run_until_complete(start())
        self.world.turn()

    # Changes of the cluster.

    @rule()
    def init_containers_end(self) -> None:
        self.world.init_containers_end()

    @rule()
    def sandboxes_are_made_anew(self) -> None:
        self.world.sandboxes_are_made_anew()

    @rule(count=st.integers(1, 3))
    def the_agent_speaks_of_init_containers(self, count: int) -> None:
        self.world.say(count)

    @rule(again=st.booleans())
    def init_containers_end_and_all_is_told(self, again: bool) -> None:
        self.world.init_containers_end()
        if again:
            self.world.sandboxes_are_made_anew()
        self.world.say(100)
        self.world.deliver(100)
        self.world.round()

    @rule()
    def another_operator_leads(self) -> None:
        """Let another operator lead; the Filter answers came from the former one."""
        super().another_operator_leads()
        self.offers.clear()

    @rule()
    def the_same_operator_leads_again(self) -> None:
        """A standby has the same state as a replica that has just listed everything."""
        self.world.follow()
        self.offers.clear()
        operator = self.world.operator
        self.follows_as_one_that_has_just_started(operator)
        self.world.lead_again()

    def follows_as_one_that_has_just_started(self, operator: Replica) -> None:
        fresh = self.world.started(operator.time)
        for uuid in DEVICES:
            assert use_of(operator.ledger, uuid) == use_of(fresh.ledger, uuid), uuid
        assert list(operator.state.reservations) == []
        assert operator.state.claims.unsettled == {}
        waiting = {waiter.key for waiter in fresh.state.queue}
        assert {waiter.key for waiter in operator.state.queue} <= waiting

    # Invariants.

    @invariant()
    def no_device_is_over_capacity(self) -> None:
        for uuid, use in self.world.held().items():
            assert use.memory_mib <= DEVICES[uuid][1], uuid
            assert use.slots <= 10, uuid

    @invariant()
    def nothing_is_freed_in_use(self) -> None:
        standing = {
            (claim.metadata.uid, claim.status.allocation.id)
            for claim in self.world.claims()
            if claim.status.allocation is not None
        }
        for claim_uid, allocation_id, _ in self.world.running.values():
            assert (claim_uid, allocation_id) in standing

    @invariant()
    def what_runs_is_held(self) -> None:
        """Init containers keep their devices while they run, and so do the other containers."""
        held = {
            claim.metadata.uid: claim.status.allocation.devices
            for claim in self.world.claims()
            if claim.status.allocation is not None
        }
        for claim_uid, _, devices in self.world.running.values():
            assert all(device in held[claim_uid] for device in devices)

    @invariant()
    def only_claims_that_a_new_leader_touches_get_other_devices(self) -> None:
        """So late writes of a former leader are refused, or allocate nothing.

        See docs/design/leader-and-fence.md.
        """
        assert self.api.moved == []

    @invariant()
    def no_two_pods_run_on_one_claim(self) -> None:
        claims = [claim_uid for claim_uid, _, _ in self.world.running.values()]
        assert len(claims) == len(set(claims))

    def teardown(self) -> None:
        """Delete everything and check for leaks: no allocation, no finalizer, no reservation."""
        try:
            self.failures = self.losses = self.lost_bindings = self.failed_reads = 0
            self.api.gate.set()
            self.world.turn(200)
            self.invariants_hold()
            self.what_is_not_bound_expires()
            for pod in list(self._pods()):
                self.api.vanish(PODS, pod["metadata"]["name"])
            for name in ("a", "b", "c"):
                self.delete_a_claim_by_name(name)
            self.nothing_is_left()
        finally:
            self.world.close()

    def what_is_not_bound_expires(self) -> None:
        """Stop calling Filter, and check that pods without a node lose their devices in time."""
        for _ in range(12):
            self.world.deliver(1000)
            self.world.round()
            self.world.operator.time += 61
            self.world.turn(50)
        self.invariants_hold()
        for claim in self.world.claims():
            reserved = claim.status.reserved_for
            if claim.status.allocation is None or claim.spec.binding_mode == "Immediate":
                continue
            assert reserved is not None
            pod = self.world.pod(reserved.pod_uid)
            assert pod is None or pod["spec"].get("nodeName"), claim.metadata.name

    def delete_a_claim_by_name(self, name: str) -> None:
        if (VGPU_CLAIMS.plural, "default", name) in self.api.objects:
            self.world.delete_claim(name)

    def invariants_hold(self) -> None:
        self.no_device_is_over_capacity()
        self.nothing_is_freed_in_use()
        self.what_runs_is_held()
        self.no_two_pods_run_on_one_claim()
        self.only_claims_that_a_new_leader_touches_get_other_devices()


EngineStates.TestCase.settings = SETTINGS
TestEngineStates = pytest.mark.timeout(300)(EngineStates.TestCase)


class AllComesBack(ComesBack, EngineStates):
    """For any report about any object the leader continues, and in the end nothing is held.

    Running pods cannot be checked here, because their claims vanish.
    """

    def __init__(self) -> None:
        super().__init__(ChangingWorld(DEVICES))

    def no_device_is_over_capacity(self) -> None:
        """Not checked here: devices vanish, and claims vanish while their pods run."""

    nothing_is_freed_in_use = what_runs_is_held = no_device_is_over_capacity
    no_two_pods_run_on_one_claim = no_device_is_over_capacity
    only_claims_that_a_new_leader_touches_get_other_devices = no_device_is_over_capacity

    def follows_as_one_that_has_just_started(self, operator: Replica) -> None:
        """Not checked here: a replica that saw a claim vanish keeps the devices of its pod."""

    def what_is_not_bound_expires(self) -> None:
        """Skip the check while nodes are gone, because no agent reports there."""

    def nothing_is_left(self) -> None:
        self.world.running.clear()  # no pod is left, and some claims vanished without a report
        super().nothing_is_left()
        assert kept_of_objects(self.world.operator.state) == {}


AllComesBack.TestCase.settings = SETTINGS
TestAllComesBack = pytest.mark.timeout(300)(AllComesBack.TestCase)
