"""Requests of all sizes come, wait, are served and end, while some of them have earmarks."""

from __future__ import annotations

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from builders import a_container, use_of
from replica import Replica
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_operator.engine.scheduling.kept import MOST_OF_A_NAMESPACE
from vgpu_operator.extender.filtering import filter_nodes
from vgpu_operator.extender.wire import FilterRequest

MIB = 16384
DEVICES = {"GPU-0": "node-1", "GPU-1": "node-1", "GPU-2": "node-2"}
CONFIG = ClusterConfig.model_validate({"scheduling": {"starvationAfterSeconds": 10}})
SIZES = st.tuples(
    st.sampled_from([4096, 8192, MIB]),
    st.integers(1, 2),
    st.sampled_from([0, 100]),
    st.sampled_from([0, 0, 1]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), SIZES),
        st.tuples(st.sampled_from(["end", "ask"]), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.sampled_from([1, 11])),
    ),
    max_size=40,
)


class Cluster:
    """A replica with the pods it has observed."""

    def __init__(self) -> None:
        self.replica = Replica(config=CONFIG)
        self.pods: list[Pod] = []
        self.born = 0
        self.had_devices: set[str] = set()
        for index, (uuid, node) in enumerate(DEVICES.items()):
            self.replica.device(uuid=uuid, node=node, index=index, memory_mib=MIB)

    async def do(self, what: str, how: tuple[int, int, int, int] | int) -> None:
        if isinstance(how, tuple):
            mib, devices, cores, priority = how
            self.born += 1
            limits = {"gpu": devices, "gpumem": mib, "gpucores": cores}
            named = {f"nvidia.com/{key}": amount for key, amount in limits.items()}
            containers = [a_container(limits=named)]
            self.pods.append(
                self.replica.offered(
                    f"pod-{self.born:03}", containers=containers, priority=priority
                )
            )
        elif what == "wait":
            self.replica.time += how
        elif self.pods and what == "end":
            self.end(self.pods.pop(how % len(self.pods)))
        elif self.pods:
            self.ask(self.pods[how % len(self.pods)])
        self.check()
        await self.replica.scheduled()
        self.check()

    def end(self, pod: Pod) -> None:
        consumer = self.replica.cache.pod(pod.metadata.uid)
        assert consumer is not None
        claim = self.replica.cache.claim(consumer.claim)
        self.replica.news.pod_gone(pod.metadata.uid)
        if claim is not None:
            self.replica.news.claim_gone(consumer.claim, claim.metadata.uid)

    def ask(self, pod: Pod) -> list[str]:
        request = {"Pod": pod.to_wire(), "NodeNames": sorted(set(DEVICES.values()))}
        return list(filter_nodes(self.replica.engine, FilterRequest.read(request)).node_names)

    def ask_and_bind(self, pod: Pod) -> None:
        for node in self.ask(pod):
            known = self.replica.cache.pod(pod.metadata.uid)
            assert known is not None
            self.replica.engine.begin_bind(known, node)

    def has_devices(self, pod: Pod) -> bool:
        return self.replica.reservation(pod) is not None

    def check(self) -> None:
        """Check that no device is over capacity or earmarked twice."""
        self.had_devices |= {pod.metadata.uid for pod in self.pods if self.has_devices(pod)}
        for uuid in DEVICES:
            assert use_of(self.replica.ledger, uuid).memory_mib <= MIB
        kept = [device for earmark in self.replica.state.earmarks for device in earmark.devices]
        assert len(kept) == len(set(kept))
        assert len(self.replica.state.earmarks) <= MOST_OF_A_NAMESPACE

    async def serve_everybody(self) -> None:
        """End the pods with devices, add none, and check that all others get their devices.

        A pod that was offered devices and not bound in time gets its devices only at Bind.
        """
        for _ in range(len(self.pods) + 1):
            for pod in self.pods:
                if pod.metadata.uid in self.had_devices and not self.has_devices(pod):
                    self.ask_and_bind(pod)
            served = [pod for pod in self.pods if self.has_devices(pod)]
            self.pods = [pod for pod in self.pods if pod not in served]
            for pod in served:
                self.end(pod)
            self.replica.time += 11
            await self.replica.scheduled()
            self.check()
        assert self.pods == []
        await self.replica.scheduled()
        assert len(self.replica.state.earmarks) == 0
        assert [use_of(self.replica.ledger, uuid).memory_mib for uuid in DEVICES] == [0, 0, 0]


@given(steps=STEPS)
@example(steps=[("create", (4096, 1, 0, 0)), ("ask", 0), *[("wait", 11)] * 6])
def test_earmarks_never_give_a_device_twice_and_leave_nobody_waiting_and_nothing_kept(
    steps: list[tuple[str, tuple[int, int, int, int] | int]],
) -> None:
    """Every pod fits an empty cluster, so it gets its devices once all others have ended."""

    async def play() -> None:
        cluster = Cluster()
        for what, how in steps:
            await cluster.do(what, how)
        await cluster.serve_everybody()

    asyncio.run(play())
