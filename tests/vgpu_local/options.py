"""The options of a test cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vgpu_api.names import SCHEDULER_ALIASES
from vgpu_local.kubelet.pace import Pace
from vgpu_local.scheduler.queue import Backoff


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a test cluster.

    Attributes:
        config: The cluster configuration document for operator and agents.
        scheduler_names: The `schedulerName`s that the scheduler serves.
        pace: The kubelets' waiting times.
        backoff: The scheduler's back-off.
        operators: The number of the operator's replicas.
        webhooks: The number of the admission webhooks' replicas; 0 for no webhooks.
        drain_s: The time for which a webhook replica keeps serving after SIGTERM.
        linger_s: The time for which an ending leader refuses calls after it released its Lease.
        standbys_first_s: The time by which a leader ends later than standbys after a change of
            the configuration.
        agent_gone_s: The silence of an agent after which claims of ended pods need no report.
        on_violation: The operator's reaction to claims that violate limits: Report or Evict.
        lease_s: The duration of the Lease.
        unused_lease_s: The time for which an agent keeps slots that its kubelet does not know.
        state_disk_bytes: The size of a separate disk for each agent's state; 0 for no such disk.
        log_level: The log level of operator and agents.
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
