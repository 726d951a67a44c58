"""Tells the mix what pods usually ask for, their CPU included, each pod once.

Claims that no pod owns are told by the ledger: nobody knows yet what their pods will ask of a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.host import cpu_milli_of
from vgpu_api.v1alpha1 import VGPUClaimSpec
from vgpu_operator.ask import Ask
from vgpu_operator.engine.consumers import Consumer
from vgpu_operator.engine.refusals import Refusal
from vgpu_operator.placement import Columns


@dataclass(frozen=True, slots=True)
class Typical:
    """What is typical, for the fragmentation policy.

    Attributes:
        config: Defaults and policies.
        columns: Hold the mix, and know which nodes have cards.
        spec_for: The spec of the claim that a pod has or will have.
    """

    config: ClusterConfig
    columns: Columns
    spec_for: Callable[[Consumer], VGPUClaimSpec | Refusal]

    def asked(self, consumer: Consumer) -> None:
        """A pod that asks for cards was seen for the first time."""
        if not consumer.owned or consumer.pod.is_terminal:
            return
        spec = self.spec_for(consumer)
        if isinstance(spec, VGPUClaimSpec) and self.columns.mix.wants_next():
            cpu_milli = cpu_milli_of(consumer.pod)
            self.columns.mix.observe(Ask.of(spec, self.config, cpu_milli=cpu_milli))

    def came_without(self, pod: Pod) -> None:
        """A pod that asks for no card was seen on a node for the first time.

        It counts if it took the place of one that does; a DaemonSet's takes its place everywhere.
        """
        node = self.columns.node_id(pod.spec.node_name)
        if node is None or not self.columns.node_cards[node]:
            return
        if any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references):
            return
        if self.columns.mix.wants_next():
            self.columns.mix.observe(None)
