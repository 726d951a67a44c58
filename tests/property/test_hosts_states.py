"""Free CPU of a node is allocatable minus the requests of its pods, after any history."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from builders import a_node, a_pod, device_facts, some_columns
from vgpu_api.core import Container
from vgpu_api.core.pod import ResourceRequirements
from vgpu_operator.node_filter.node_rules import Hosts
from vgpu_operator.placement.columns import CPU_UNKNOWN

NODES = ("node-0", "node-1")
uids = st.sampled_from(("a", "b", "c"))
nodes = st.sampled_from(NODES)
amounts = st.sampled_from((0, 100, 2500))


class HostsMachine(RuleBasedStateMachine):
    """A comparison with a dictionary of pods that is summed up from scratch each time."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = some_columns(
            *(device_facts(f"GPU-{number}", node=name) for number, name in enumerate(NODES))
        )
        self.hosts = Hosts(self.columns)
        self.allocatable: dict[str, int] = {}
        self.pods: dict[str, tuple[str, int]] = {}

    @rule(name=nodes, cpu=st.sampled_from((None, 0, 4000)))
    def a_node_is_seen(self, name, cpu):
        self.allocatable.pop(name, None)
        if cpu is not None:
            self.allocatable[name] = cpu
        said = None if cpu is None else {"cpu": f"{cpu}m"}
        self.hosts.apply_node(a_node(name, allocatable=said))

    @rule(name=nodes)
    def a_node_goes(self, name):
        self.allocatable.pop(name, None)
        self.hosts.remove_node(name)

    @rule(uid=uids, node=st.sampled_from(("", *NODES, "node-without-cards")), cpu=amounts,
          phase=st.sampled_from(("Pending", "Running", "Succeeded", "Failed")))  # fmt: skip
    def a_pod_is_seen(self, uid, node, cpu, phase):
        asks = ResourceRequirements(requests={"cpu": f"{cpu}m"})
        pod = a_pod(uid, uid=uid, node=node, phase=phase, containers=[Container(resources=asks)])
        has_come = self.hosts.apply_pod(pod)
        before = self.pods.get(uid)
        if phase in ("Succeeded", "Failed"):
            self.pods.pop(uid, None)
            assert not has_come
        elif node:
            self.pods[uid] = node, cpu
            assert has_come == (before is None or before[0] != node)
        else:
            assert not has_come

    @rule(uid=uids, node=nodes, cpu=amounts)
    def a_pod_is_expected(self, uid, node, cpu):
        self.hosts.expect(uid, node=node, cpu_milli=cpu)
        self.pods[uid] = node, cpu

    @rule(uid=uids)
    def a_pod_goes(self, uid):
        self.hosts.remove_pod(uid)
        self.pods.pop(uid, None)

    @invariant()
    def free_is_what_nobody_asked_for(self):
        for name in NODES:
            asked = sum(cpu for node, cpu in self.pods.values() if node == name)
            known = self.allocatable.get(name)
            number = self.columns.node_id(name)
            free = CPU_UNKNOWN if known is None else known - asked
            assert self.columns.node_cpu_free[number] == free


HostsMachine.TestCase.settings = settings(stateful_step_count=25)
TestHosts = HostsMachine.TestCase
