"""What may differ from one cluster on this machine to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vgpu_api.names import SCHEDULER_ALIASES
from vgpu_local.kubelet.pace import Pace
from vgpu_local.scheduler.queue import Backoff


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What may differ from cluster to cluster.

    Attributes:
        config: the cluster configuration document that operator and agents are given.
        scheduler_names: the `schedulerName`s that the scheduler answers to.
        pace: the kubelets' waiting times.
        backoff: the scheduler's.
        operators: how many replicas of the operator.
        webhooks: how many processes serve the admission webhooks; 0: nothing is admitted by us.
        drain_s: how long a process of the webhooks serves on after SIGTERM.
        linger_s: how long a leader that ends refuses calls after it gave its lease up.
        standbys_first_s: with a new configuration, how much later than standbys a leader ends.
        agent_gone_s: how long an agent is silent before claims of ended pods need no report of it.
        on_violation: what the operator does about claims that violate limits: Report or Evict.
        lease_s: how long the lease of a silent leader lasts.
        unused_lease_s: how long an agent keeps slots that its kubelet has no record of.
        state_disk_bytes: of a disk of its own for each agent's state; 0: the run folder's.
        log_level: of operator and agents.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    scheduler_names: frozenset[str] = SCHEDULER_ALIASES | {"default-scheduler"}
    pace: Pace = Pace()  # noqa: RUF009 - immutable
    backoff: Backoff = Backoff()  # noqa: RUF009 - immutable
    operators: int = 1
    webhooks: int = 1
    drain_s: int = 0
    linger_s: int = 0
    standbys_first_s: int = 0
    agent_gone_s: int = 300
    on_violation: str = "Report"
    lease_s: int = 15
    unused_lease_s: float = 30.0
    state_disk_bytes: int = 0
    log_level: str = "INFO"
