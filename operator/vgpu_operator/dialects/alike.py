"""A cache of demands: pods of one template ask alike, so their request is read once.

Reading the request of a pod takes longer than placing it, and workloads create many equal pods.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from vgpu_api import names
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Container, Pod
from vgpu_operator.dialects.pod_demand import PodDemand

Question: TypeAlias = tuple[Hashable, ...]

_KEPT = 1 << 10
_KUBERNETES = "kubernetes.io/"


def question_of(pod: Pod) -> Question:
    """Return everything that the demand of a pod depends on. Equal pods have equal demands.

    Left out is what no dialect reads and what differs from pod to pod: Kubernetes' own annotations
    (`batch.kubernetes.io/job-completion-index`) and the records of an allocation.
    """
    metadata, spec = pod.metadata, pod.spec
    return (
        metadata.labels.get(names.ACK_GPU_COUNT_LABEL),
        tuple(
            item
            for item in metadata.annotations.items()
            if _KUBERNETES not in item[0] and item[0] not in names.HAMI_RECORDS
        ),
        tuple(map(_container, spec.init_containers)),
        tuple(map(_container, spec.containers)),
    )


def _container(container: Container) -> Question:
    resources = container.resources
    return (
        container.name,
        container.restart_policy,
        tuple(resources.limits.items()),
        tuple(resources.requests.items()),
        tuple((variable.name, variable.value) for variable in container.env),
    )


class Alike:
    """The demands that were read last, for one configuration.

    Args:
        kept: The most demands that are remembered.
    """

    def __init__(self, *, kept: int = _KEPT) -> None:
        self._kept = kept
        self._config: ClusterConfig | None = None
        self._known: dict[Question, PodDemand] = {}

    def known(self, question: Question, config: ClusterConfig) -> PodDemand | None:
        """Return the demand of pods with this question, or None if it is not known."""
        if config is not self._config:
            self._known.clear()
            self._config = config
        return self._known.get(question)

    def remember(self, question: Question, demand: PodDemand) -> None:
        """Remember a demand that was read with the configuration of the last `known`."""
        if len(self._known) >= self._kept:
            self._known.clear()  # keeping an order of use would cost every look-up
        self._known[question] = demand
