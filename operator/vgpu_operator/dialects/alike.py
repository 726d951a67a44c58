"""A cache of demands: pods of one template have equal requests, which are parsed once.

Parsing a pod's request takes longer than placing it, and workloads create many equal pods.
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
    """Return everything that the demand of a pod depends on. Equal results mean equal demands.

    Fields that no dialect reads and that differ from pod to pod are omitted: Kubernetes' own
    annotations (`batch.kubernetes.io/job-completion-index`) and the records of an allocation.
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
    """The most recent demands, for one configuration.

    Args:
        kept: The largest number of demands to remember.
    """

    def __init__(self, *, kept: int = _KEPT) -> None:
        self._kept = kept
        self._config: ClusterConfig | None = None
        self._known: dict[Question, PodDemand] = {}

    def known(self, question: Question, config: ClusterConfig) -> PodDemand | None:
        """Return the demand of pods with this key, or None if it is not cached."""
        if config is not self._config:
            self._known.clear()
            self._config = config
        return self._known.get(question)

    def remember(self, question: Question, demand: PodDemand) -> None:
        """Cache a demand that was computed with the configuration of the last `known`."""
        if len(self._known) >= self._kept:
            # clear everything, because tracking the order of use would slow down every look-up
            self._known.clear()
        self._known[question] = demand
