"""Gate mode: groups and lone pods come and go while writes fail and leaders are killed.

A group is past its gates as a whole or not at all. Lifting the gates takes several PATCHes, so a
leader may be killed between two of them. This does no harm because the claims of the other pods are
already written, and a successor can lift the remaining gates. The checks read only the objects of
the API server.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from tests.property.test_gate_states import MIB, GateStates

from builders import a_container, a_pod
from vgpu_api.core.pod import ResourceRequirements
from vgpu_api.names import ANNOTATION_GROUP, ANNOTATION_GROUP_MIN, SCHEDULING_GATE
from vgpu_api.resources import PODS
from vgpu_client.errors import Forbidden
from vgpu_operator.engine.scheduling.gate_groups import START_S
from world_states import PICK, SETTINGS

GROUPS = ("g", "h")
UNLIMITED = 1 << 30


class GateGroupStates(GateStates):
    """Invariant: no group stays past its gates with fewer pods than its minimum."""

    def __init__(self) -> None:
        self.least: dict[str, int] = {}
        self.were_lifted: dict[str, set[str]] = {}  # UIDs, by group
        self.disturbed: set[str] = set()  # groups that a user changed while they had devices
        self.writes_left = UNLIMITED  # by the leader, which is killed afterwards
        self.refused = ""  # the pod whose claim the API server refuses
        super().__init__()

    def _before(self, verb: str, name: str) -> BaseException | None:
        if self.refused and name.startswith(f"{self.refused}-"):
            return Forbidden("by a policy", status=403)
        self.writes_left -= 1
        if self.writes_left < 0:
            return Forbidden("killed", status=403)
        return super()._before(verb, name)

    def _of(self, group: str) -> list[dict[str, Any]]:
        return [pod for pod in self._pods() if _group(pod) == group]

    def _allocated(self) -> set[str]:
        """Return the UIDs of the pods with devices."""
        return {
            claim.status.reserved_for.pod_uid
            for claim in self.world.claims()
            if claim.status.allocation is not None and claim.status.reserved_for is not None
        }

    def _disturb(self, pod: dict[str, Any]) -> None:
        uids = {each["metadata"]["uid"] for each in self._of(_group(pod))}
        if uids & self._allocated():
            self.disturbed.add(_group(pod))

    # Actions of users.

    @rule(
        group=st.sampled_from(GROUPS),
        count=st.integers(1, 4),
        least=st.integers(1, 4),
        mib=MIB,
        cpu=st.sampled_from(["100m", "1", "2"]),
    )
    def create_a_group(self, group: str, count: int, least: int, mib: int, cpu: str) -> None:
        """Create a group, sometimes with fewer pods than must start together."""
        if self._of(group):
            return
        self.world.deliver(1000)  # pods of a former group with this name count until they are gone
        self.least[group] = least
        self.were_lifted[group] = set()
        self.disturbed.discard(group)
        for number in range(count):
            self._create(group, f"pod-{group}{number}", mib, cpu)

    @precondition(lambda self: self.least)
    @rule(group=st.sampled_from(GROUPS), number=st.integers(4, 6), mib=MIB)
    def another_pod_joins(self, group: str, number: int, mib: int) -> None:
        name = f"pod-{group}{number}"
        if self._of(group) and all(pod["metadata"]["name"] != name for pod in self._pods()):
            self._create(group, name, mib, "100m")

    def _create(self, group: str, name: str, mib: int, cpu: str) -> None:
        self.born += 1
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        amounts = ResourceRequirements(
            limits=dict(limits), requests={"nvidia.com/gpu": 1, "cpu": cpu}
        )
        pod = a_pod(
            name,
            uid=f"{self.born:08x}-{name}",
            containers=[a_container().model_copy(update={"resources": amounts})],
            scheduler="default-scheduler",
            annotations={
                ANNOTATION_GROUP: group,
                ANNOTATION_GROUP_MIN: str(self.least[group]),
            },
        ).to_wire()
        pod["spec"]["schedulingGates"] = [{"name": SCHEDULING_GATE}]
        self.api.put(PODS, pod)

    def delete_a_pod_by_force(self, pick: int) -> None:
        pods = self._pods()
        self._disturb(pods[pick % len(pods)])
        super().delete_a_pod_by_force(pick)

    @precondition(lambda self: self._pods())
    @rule(pick=PICK)
    def delete_a_pod(self, pick: int) -> None:
        self.delete_a_pod_by_force(pick)

    def take_the_gate_off_by_hand(self, pick: int) -> None:
        pods = self._pods()
        self.disturbed.add(_group(pods[pick % len(pods)]))
        super().take_the_gate_off_by_hand(pick)

    @precondition(lambda self: self._pods())
    @rule(pick=PICK)
    def somebody_takes_a_gate_off(self, pick: int) -> None:
        self.take_the_gate_off_by_hand(pick)

    # Changes of the cluster.

    @rule(
        group=st.sampled_from(GROUPS),
        count=st.integers(2, 4),
        mib=MIB,
        writes=st.integers(0, 12),
    )
    def a_gang_comes_and_its_leader_is_killed(
        self, group: str, count: int, mib: int, writes: int
    ) -> None:
        self._delete(group)
        self.create_a_group(group, count, count, mib, "100m")
        self.the_leader_is_killed(writes)

    @rule(writes=st.integers(0, 12))
    def the_leader_is_killed(self, writes: int) -> None:
        """Kill the leader after this many more writes, so that its other decisions are lost."""
        self.writes_left = writes
        self.all_goes_well()
        self.another_operator_leads()
        self.writes_left = UNLIMITED

    @rule(group=st.sampled_from(GROUPS), count=st.integers(2, 4), pick=PICK)
    def a_gang_comes_with_a_claim_that_cannot_be_written(
        self, group: str, count: int, pick: int
    ) -> None:
        self._delete(group)
        self.create_a_group(group, count, count, 2048, "100m")
        self.refused = f"pod-{group}{pick % count}"
        self.all_goes_well()

    @rule()
    def all_claims_can_be_written(self) -> None:
        self.refused = ""

    def _delete(self, group: str) -> None:
        for pod in self._of(group):
            self.api.vanish(PODS, pod["metadata"]["name"])
        self.world.collect_garbage()
        self.world.deliver(1000)

    @rule()
    def a_while_passes_without_faults(self) -> None:
        """Check that no pod keeps devices behind a gate and no group is partly past its gates.

        A group whose claims cannot be written holds devices until it gives up and tries again
        later.
        """
        self.failures = self.losses = 0
        self.api.gate.set()
        self.world.turn(100)
        behind = dict.fromkeys(self.least, 0)
        for _ in range(16):
            self.world.operator.time += START_S / 2
            self.world.deliver(1000)
            self.world.round()
            self.world.agent_releases_what_has_ended()
            held = self._allocated()
            for group in self.least:
                waiting = {p["metadata"]["uid"] for p in self._of(group) if _is_gated(p)}
                behind[group] = behind[group] + 1 if waiting & held else 0
                assert behind[group] <= 5, group
        self.note_lifted()
        for group in self.least.keys() - self.disturbed:
            assert not 0 < len(self.were_lifted[group]) < self.least[group], group

    def teardown(self) -> None:
        self.refused = ""
        super().teardown()

    # Invariants.

    @invariant()
    def note_lifted(self) -> None:
        for group in self.least:
            self.were_lifted[group] |= {
                pod["metadata"]["uid"] for pod in self._of(group) if not _is_gated(pod)
            }

    @invariant()
    def a_group_is_lifted_when_enough_of_its_claims_are_written(self) -> None:
        held = self._allocated()
        for group in self.least.keys() - self.disturbed:
            lifted = self.were_lifted[group]
            if lifted:
                waiting = {pod["metadata"]["uid"] for pod in self._of(group)} - lifted
                assert len(lifted) + len(waiting & held) >= self.least[group], group


def _group(pod: dict[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(ANNOTATION_GROUP, ""))


def _is_gated(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


GateGroupStates.TestCase.settings = SETTINGS
TestGateGroupStates = pytest.mark.timeout(300)(GateGroupStates.TestCase)
