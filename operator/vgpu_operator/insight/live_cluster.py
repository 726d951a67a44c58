"""Answers questions about new pods and claims with the operator's own functions and state.

If parts of the cluster could not be read, the rules that depend on them are skipped, and
`not_judged` names these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod, PodGroup
from vgpu_api.errors import BadInput
from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.demand import Demand
from vgpu_operator.engine.claims.describe import refusal_of_kind
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey, gpu_pod_of
from vgpu_operator.engine.preemption.preempt_due import begin
from vgpu_operator.engine.scheduling.gate import is_on, refusal_before_nodes
from vgpu_operator.engine.scheduling.groups import least_of, members, others_of
from vgpu_operator.engine.scheduling.queue import EquivalenceClass
from vgpu_operator.engine.state import State
from vgpu_operator.insight.offline_cluster import utilisation
from vgpu_operator.insight.preemption import (
    MakesWay,
    WouldPreempt,
    unknown,
    who_makes_way,
    would_preempt,
)
from vgpu_operator.insight.priorities import Priorities
from vgpu_operator.insight.question import Outcome, Question, Undo, plan_of
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.node_filter import NodeRules
from vgpu_operator.placement import Budget, Columns, Plan, place, refusals_on

_EPHEMERAL = "ephemeral volumes are not judged: their claims are made with the pod"


@dataclass(frozen=True, slots=True)
class Unread:
    """Reasons why parts of the cluster could not be read; empty for each part that was.

    Attributes:
        config: For the operator's configuration.
        pods: For the pods of all namespaces.
        volumes: For PersistentVolumeClaims, PersistentVolumes, StorageClasses and CSINodes.
    """

    config: str = ""
    pods: str = ""
    volumes: str = ""


EVERYTHING_READ = Unread()


def known_part(pod: GPUPod, unread: Unread) -> GPUPod:
    """Return the pod without the parts that cannot be judged from the known state."""
    spec: dict[str, Any] = {}
    if unread.volumes:
        spec["volumes"] = []
    if unread.pods:
        affinity = pod.pod.spec.affinity
        alone = {"pod_affinity": None, "pod_anti_affinity": None}
        spec["affinity"] = None if affinity is None else affinity.model_copy(update=alone)
        spec["topology_spread_constraints"] = []
    return pod.seen_again(_with(pod.pod, **spec)) if spec else pod


def not_judged(config: ClusterConfig, pod: GPUPod | None, unread: Unread) -> str:
    """Return a line about the checks that an answer skips; empty if it skips none.

    Args:
        config: The cluster's configuration, or the assumed one.
        pod: The pod, if it is judged like a gated pod; else None.
        unread: The parts of the cluster that could not be read.
    """
    lines = []
    if unread.config:
        lines.append(
            "the operator's configuration is not known; the defaults are assumed, with "
            f"scheduling.mode {config.scheduling.mode}: {unread.config}"
        )
    if pod is not None and unread.pods:
        lines.append(
            f"resources that other pods use, and rules about pods, are not judged: {unread.pods}"
        )
    if pod is not None and unread.volumes and pod.host_demand.volumes:
        lines.append(f"volumes are not judged: {unread.volumes}")
    return "; ".join(lines)


class LiveCluster:
    """A cluster in the engine's state, for questions about pods and claims that do not exist.

    Nothing is written to the cluster, and changes of the state are undone when the context exits.

    Args:
        state: The engine's state; nothing else may change it in the meantime.
        unread: Returns the parts of the cluster that could not be read, given a namespace.
        priorities: The cluster's PriorityClasses.
        readable: The namespaces whose pods may be named; None: all.

    Attributes:
        state: The engine's state.
        priorities: The cluster's PriorityClasses.
    """

    def __init__(
        self,
        state: State,
        unread: Callable[[str], Unread] = lambda _: EVERYTHING_READ,
        priorities: Priorities | None = None,
        readable: Collection[str] | None = None,
    ) -> None:
        self.state = state
        self._readable = readable
        self.priorities = priorities or Priorities()
        self._unread = unread
        self._held = ExitStack()
        self._count = 0

    def __enter__(self) -> LiveCluster:
        return self

    def __exit__(
        self,
        of: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    @property
    def config(self) -> ClusterConfig:
        """Return the operator's configuration."""
        return self.state.config

    @property
    def columns(self) -> Columns:
        """Return the cluster's devices."""
        return self.state.ledger.columns

    @property
    def nodes(self) -> Collection[str]:
        """Return the names of the nodes with devices."""
        return self.state.ledger.nodes()

    def claim(self, namespace: str, name: str) -> VGPUClaim | None:
        """Return a claim or claim template; None if it does not exist."""
        return self.state.cache.claim(ClaimKey(namespace, name))

    def decide(self, question: Question) -> Outcome:
        """Return where the pod or claim would be placed, or the refusal; nothing is reserved."""
        pod, ledger = self._pod(question), self.state.ledger
        if pod is not None and self._is_gated(pod):
            refusal = refusal_before_nodes(self.state, pod, self.state.cache.claim(pod.claim))
            if refusal is not None:
                return Outcome(Plan(None), refusal.message, of_nodes=False)
        if question.standing is not None:
            return Outcome(plan_of(question.standing, self.refusals(question)))
        kind = self.kind(question)
        plan = place(
            ledger.columns,
            kind.request,
            None,
            nodes=ledger.filters.of(kind.rules, kind.host_demand),
            budget=ledger.budget(kind.namespace, kind.scopes),
        )
        if not plan.refused:
            return Outcome(plan)
        found = refusal_of_kind(self._key(question), kind, self.state)
        return Outcome(plan, plan.text if found is None else found.message)

    def refusals(self, question: Question) -> Mapping[str, Tally]:
        """Return, by name, the reasons of the nodes that cannot serve the question."""
        if question.standing is not None:
            elsewhere = Tally.of_node(Reason.RESERVED_ELSEWHERE)
            return {n: elsewhere for n in self.nodes if n != question.standing.node_name}
        kind, ledger = self.kind(question), self.state.ledger
        return refusals_on(
            ledger.columns,
            kind.request,
            self.nodes,
            nodes=ledger.filters.of(kind.rules, kind.host_demand),
            budget=ledger.budget(kind.namespace, kind.scopes),
        )

    def kind(self, question: Question) -> EquivalenceClass:
        """Return the class in which the request would wait: its demand and its node rules."""
        pod, request = self._pod(question), self.demand(question)
        if pod is None:
            return EquivalenceClass(request, NodeRules(), question.namespace)
        host_demand = pod.host_demand if self._is_gated(pod) else None
        return EquivalenceClass(
            *(request, pod.rules, question.namespace),
            host_demand=host_demand,
            scopes=pod.scopes,
            priority=pod.priority,
        )

    def demand(self, question: Question) -> Demand:
        """Return the requested devices."""
        pod = self._pod(question)
        if pod is None:
            return Demand.of(question.spec, self.config)
        return pod.request(question.spec, self.config)

    def not_judged(self, question: Question) -> str:
        """Return a line about the checks that the answer skips; empty if it skips none."""
        pod, unread = question.pod, self._unread(question.namespace)
        new = None if pod is None else self._new(question, pod)
        if pod is None or new is None or not self._is_gated(new):
            return not_judged(self.config, None, unread)
        line = not_judged(self.config, new, unread)
        is_made = any(volume.get("ephemeral") for volume in pod.spec.volumes)
        return "; ".join(filter(None, (line, _EPHEMERAL if is_made else "")))

    def budget(self, question: Question) -> Budget:
        """Return the amounts that the quotas of the question's namespace still allow."""
        pod = self._pod(question)
        return self.state.ledger.budget(question.namespace, None if pod is None else pod.scopes)

    def charge(self, question: Question, outcome: Outcome) -> Undo:
        """Hold the chosen devices until the returned function is called.

        Already allocated devices are held anyway.
        """
        held = ExitStack()
        self._held.callback(held.close)
        if question.standing is not None:
            return held.close
        ledger, node, key = self.state.ledger, outcome.plan.node, self._key(question)
        pod = self._pod(question)
        self._count += 1  # give the pod of the next question another key
        assert node is not None
        assumed = ledger.assume(key, question.spec, outcome.plan.allocation())
        held.callback(ledger.forget, assumed)
        if pod is None:
            return held.close
        ledger.count_as(key, pod.scopes)
        uid = pod.uid
        ledger.filters.hosts.expect(uid, node=node, cpu_milli=pod.cpu_milli)
        held.callback(ledger.filters.hosts.remove_pod, uid)
        if self._is_gated(pod):
            ledger.expect_pod(pod.pod, node)
            held.callback(ledger.forget_pod, uid)
        return held.close

    # Preemption and groups.

    def preemption(self, question: Question, outcome: Outcome) -> WouldPreempt:
        """Return the pods that would be evicted for a refused pod alone, without its group.

        Later questions see this preemption as begun: its victims are ending, and their devices are
        kept for the pod.

        Args:
            question: The pod, with its priority.
            outcome: The refusal.
        """
        pod = None if question.pod is None else self._waiting(question, question.pod)
        if pod is not None:
            pod = replace(pod, group=None, group_least=None)
        return self._who_makes_way(question.namespace, pod, outcome.plan.reason, None)

    def preemption_of_group(
        self, group: GroupKey, questions: Sequence[Question], others: int
    ) -> WouldPreempt:
        """Return the pods that would be evicted for a group that lacks room; see `preemption`.

        Args:
            group: The group.
            questions: Its new pods, with their priorities.
            others: How many more new pods it has, which need no devices.
        """
        cache = self.state.cache
        pods = []
        with ExitStack() as there:
            for question in questions:
                assert question.pod is not None
                pod = self._waiting(question, question.pod)
                self._count += 1
                cache.put_pod(pod)
                there.callback(cache.forget_pod, pod.uid)
                pods.append(pod)
            for number in range(others):
                uid = f"question/{self._count}/{number}"
                cache.put_other(uid, group)
                there.callback(cache.put_other, uid, None)
            return self._who_makes_way(group.namespace, pods[0], None, group)

    def _who_makes_way(
        self, namespace: str, pod: GPUPod | None, refused: Reason | None, group: GroupKey | None
    ) -> WouldPreempt:
        unread = self._unread(namespace).pods
        if pod is not None and unread:
            return unknown(self.config, unread)
        found = who_makes_way(self.state, pod, refused)
        if found.victims:
            self._begin(found, group)
        readable = found.namespaces if self._readable is None else self._readable
        return would_preempt(self.state, found, readable)

    def _waiting(self, question: Question, given: Pod) -> GPUPod:
        """Return the question's pod as the engine sees it while it waits for devices.

        Its claim may not exist yet, so the pod itself asks for what the claim says.
        """
        pod = known_part(self._new(question, given), self._unread(question.namespace))
        if self._is_gated(pod):
            pod = pod.seen_again(_with(pod.pod, scheduling_gates=[{"name": names.SCHEDULING_GATE}]))
        assert not isinstance(pod.demand, BadInput)
        demand = replace(pod.demand, native=None, spec=question.spec)
        return replace(pod, demand=demand, claim=self._key(question), owned=True)

    def _begin(self, found: MakesWay, group: GroupKey | None) -> None:
        """Count a preemption as in progress until the context exits."""
        state = self.state
        self._count += 1
        opened = begin(found.placed, group, state)
        self._held.callback(state.preemptions.open.pop, opened.key)
        for room in opened.rooms:
            self._held.callback(state.earmarks.remove, room.key)

    def know_groups(self, groups: Mapping[GroupKey, PodGroup]) -> None:
        """Count PodGroups as created until the context exits; existing ones stay as they are."""
        known = self.state.cache.pod_groups
        for key, group in groups.items():
            if key not in known:
                known[key] = group
                self._held.callback(known.pop, key)

    def least_of(self, group: GroupKey) -> int | None:
        """Return how many of the group's pods must run together, or None if it is unknown."""
        return least_of(self.state, group)

    def running_of(self, group: GroupKey) -> int:
        """Return how many pods of the group run, or need no devices to."""
        running = sum(pod.is_running for pod in members(self.state, group))
        return running + others_of(self.state, group)

    def utilisation(self) -> dict[str, float]:
        """Return the percentages of all slots, cores and memory that are in use."""
        columns = self.columns
        numbers = (columns.node_id(name) for name in self.nodes)
        of_nodes = (columns.node_devices[number] for number in numbers if number is not None)
        return utilisation(columns, [device for devices in of_nodes for device in devices])

    def _key(self, question: Question) -> ClaimKey:
        """Return a key that no real claim can have, because names never contain a slash."""
        return ClaimKey(question.namespace, f"question/{self._count}")

    def _pod(self, question: Question) -> GPUPod | None:
        """Return the parts of the question's pod that can be judged; None for a claim."""
        if question.pod is None:
            return None
        return known_part(self._new(question, question.pod), self._unread(question.namespace))

    def _new(self, question: Question, given: Pod) -> GPUPod:
        """Return a copy of the question's pod as if it were just being created."""
        identity = {"uid": f"question/{self._count}", "namespace": question.namespace}
        labels = given.metadata.labels | {names.LABEL_ADMITTED: names.ADMITTED}
        metadata = given.metadata.model_copy(update=identity | {"labels": labels})
        # The claims of ephemeral volumes are created with the pod, so they cannot be looked up.
        volumes = [each for each in given.spec.volumes if not each.get("ephemeral")]
        new = _with(given.model_copy(update={"metadata": metadata}), volumes=volumes)
        pod = gpu_pod_of(new, self.config)
        assert pod is not None  # only pods that request devices become questions
        return pod

    def _is_gated(self, pod: GPUPod) -> bool:
        return is_on(self.state) and not pod.pod.is_bound


def _with(pod: Pod, **fields: Any) -> Pod:
    return pod.model_copy(update={"spec": pod.spec.model_copy(update=fields)})
