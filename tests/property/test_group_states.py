"""Groups and other pods are created, tried, bound and deleted in any order, with faults.

The test plays kube-scheduler by its rules: it calls Filter for the pods of a group in any order,
may drop the answers at any time, and binds pods all at once, but only if enough of them found a
node. The checks read only the objects of the API server.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from tests.property.test_engine_states import MIB, EngineStates

from builders import a_container, a_pod, a_pod_group
from vgpu_api.resources import PODS
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import BindRequest, FilterRequest
from world_states import NODES, PICK, SETTINGS

GROUPS = ("g", "h")
ORDER = st.permutations(range(4))


class GroupStates(EngineStates):
    """Invariants: no group starts partially, and tentative placements are never written."""

    def __init__(self) -> None:
        self.least: dict[str, int] = {}
        self.were_bound: dict[str, set[str]] = {}  # UIDs of pods that ever had a node, by group
        self.shrunk: set[str] = set()  # groups that lost a pod while Binds were in progress
        self.asked: set[str] = set()  # groups for which a Bind has ever come
        self.open: dict[str, Any] = {}  # Binds in progress, by pod UID
        super().__init__()

    def _before(self, verb: str, name: str) -> BaseException | None:
        return None if verb == "bind" else super()._before(verb, name)

    def _of(self, group: str) -> list[dict[str, Any]]:
        return [pod for pod in self._pods() if _group(pod) == group]

    def _open(self) -> set[str]:
        """Return the UIDs of the pods being bound, which kube-scheduler does not try again."""
        self.open = {uid: task for uid, task in self.open.items() if not task.done()}
        return set(self.open)

    # Actions of users.

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 4), least=st.integers(1, 4), mib=MIB)
    def create_a_group(self, group: str, count: int, least: int, mib: int) -> None:
        if self._of(group) or self._open():
            return
        # Pods of a former group with this name count until the watch reports their deletion.
        self.world.deliver(1000)
        self.least[group] = min(least, count)
        self.were_bound[group] = set()
        self.shrunk.discard(group)
        self.asked.discard(group)
        self.world.operator.news.pod_group_changed(a_pod_group(group, least=self.least[group]))
        for number in range(count):
            self.born += 1
            name = f"{group}{number}"
            limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
            pod = a_pod(
                name,
                uid=f"{self.born:08x}-{name}",
                group=group,
                containers=[a_container(limits=limits)],
            )
            self.api.put(PODS, pod.to_wire())

    def delete_a_pod_by_force(self, pick: int) -> None:
        pods = self._pods()
        gone = pods[pick % len(pods)]
        group, uid = _group(gone), gone["metadata"]["uid"]
        if group and not gone["spec"].get("nodeName") and self._open():
            self.shrunk.add(group)
        self.open.pop(uid, None)
        super().delete_a_pod_by_force(pick)

    @precondition(lambda self: self._pods())
    @rule(pick=PICK)
    def delete_a_pod(self, pick: int) -> None:
        self.delete_a_pod_by_force(pick)

    # Actions of kube-scheduler.

    @rule(group=st.sampled_from(GROUPS), order=ORDER, upto=st.integers(1, 4))
    def try_a_group(self, group: str, order: Sequence[int], upto: int) -> None:
        """Try a group that kube-scheduler gives up half-way, or that a plugin refuses."""
        self._simulate(group, order[:upto])

    @rule(group=st.sampled_from(GROUPS), order=ORDER, missing=st.booleans())
    def schedule_a_group(self, group: str, order: Sequence[int], missing: bool) -> None:
        placed = self._simulate(group, order)
        ready = len(self.were_bound.get(group, ())) + sum(
            1 for uid in self._open() if uid in {p["metadata"]["uid"] for p in self._of(group)}
        )
        if not placed or len(placed) + ready < self.least[group]:
            return
        if missing:  # one pod never gets its Bind
            placed.pop(min(placed))
        for uid, node in placed.items():
            self._start_bind(uid, node)
        self.world.turn()

    @rule(
        group=st.sampled_from(GROUPS),
        count=st.integers(2, 4),
        mib=MIB,
        order=ORDER,
        missing=st.booleans(),
    )
    def a_gang_comes_and_is_scheduled(
        self, group: str, count: int, mib: int, order: Sequence[int], missing: bool
    ) -> None:
        self.create_a_group(group, count, count, mib)
        self.schedule_a_group(group, order, missing)
        self.world.operator.time += 1.0
        self.world.round()

    @rule(group=st.sampled_from(GROUPS))
    def delete_a_group(self, group: str) -> None:
        for pod in self._of(group):
            self.shrunk |= {group} if self._open() else set()
            self.api.vanish(PODS, pod["metadata"]["name"])
        self.world.collect_garbage()

    def _simulate(self, group: str, order: Sequence[int]) -> dict[str, str]:
        """Call Filter for the waiting pods in this order and return the nodes they found."""
        busy = self._open()
        waiting = [
            pod
            for pod in self._of(group)
            if not pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in busy
        ]
        placed = {}

        async def ask() -> None:
            for pod in (waiting[number] for number in order if number < len(waiting)):
                asked = FilterRequest.read({"Pod": copy.deepcopy(pod), "NodeNames": list(NODES)})
                nodes = filter_nodes(self.world.operator.engine, asked).node_names
                if nodes:
                    placed[pod["metadata"]["uid"]] = nodes[0]

        self.world.loop.run_until_complete(ask())
        return placed

    def _bind(self, uid: str) -> None:
        self._start_bind(uid, self.offers.pop(uid))
        self.world.turn()

    def _start_bind(self, uid: str, node: str) -> None:
        self.asked.add(uid.split("-", 1)[1][:-1])
        request = BindRequest("default", uid.split("-", 1)[1], uid, node)

        async def start() -> None:
            self.open[uid] = self.world.loop.create_task(self.world.operator.binder.bind(request))
            self.world.binds.append(self.open[uid])

        self.world.loop.run_until_complete(start())

    @rule()
    def another_operator_leads(self) -> None:
        """Let another operator lead; it has the PodGroups from its own watch."""
        super().another_operator_leads()
        for group, least in self.least.items():
            self.world.operator.news.pod_group_changed(a_pod_group(group, least=least))

    # Invariants.

    @invariant()
    def no_group_is_bound_in_part(self) -> None:
        """Once no Bind is in progress, a group has no bound pods or at least its minimum."""
        for group in self.least:
            bound = {
                pod["metadata"]["uid"] for pod in self._of(group) if pod["spec"].get("nodeName")
            }
            self.were_bound[group] |= bound
            if self._open() or group in self.shrunk:
                continue
            assert not 0 < len(self.were_bound[group]) < self.least[group], group

    @invariant()
    def a_try_is_never_written(self) -> None:
        """A group without any Bind has no device, because a Filter may be a simulation."""
        only_tried = self.least.keys() - self.asked
        uids = {pod["metadata"]["uid"] for group in only_tried for pod in self._of(group)}
        for claim in self.world.claims():
            reserved = claim.status.reserved_for
            if claim.status.allocation is not None and reserved is not None:
                assert reserved.pod_uid not in uids, claim.metadata.name


def _group(pod: dict[str, Any]) -> str:
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName", ""))


GroupStates.TestCase.settings = SETTINGS
TestGroupStates = pytest.mark.timeout(300)(GroupStates.TestCase)
