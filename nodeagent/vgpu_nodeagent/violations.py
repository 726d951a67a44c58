"""What follows when a claim holds more than it may: condition, event, metric, eviction."""

from __future__ import annotations

import logging

from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_nodeagent.enforcement.watchdog import Held
from vgpu_nodeagent.metrics import Metrics
from vgpu_nodeagent.node_view import NodeView
from vgpu_nodeagent.reports import Reports
from vgpu_nodeagent.state.slots import Holding

logger = logging.getLogger(__name__)

REASON = "MemoryLimitViolated"


class Violations:
    """Says so, wherever it may be read.

    Args:
        api: For evictions.
        node: The node's name.
        view: The newest known claims and pods.
        reports: Says conditions and events.
        metrics: Counts.
    """

    def __init__(
        self, api: Api, node: str, view: NodeView, reports: Reports, metrics: Metrics
    ) -> None:
        self._api = api
        self._node = node
        self._view = view
        self._reports = reports
        self._metrics = metrics

    def violated(self, holding: Holding, held: Held) -> None:
        """A claim was found above its limit."""
        labels = (self._node, held.uuid, holding.namespace, holding.claim_name)
        self._metrics.violations.labels(*labels).inc()
        if claim := self._view.claim_with_uid(holding.claim_uid):
            self._reports.violated(claim, str(held))
        if pod := self._view.pod_with_uid(holding.pod_uid):
            self._reports.warning(pod, REASON, f"claim {holding.claim_name} {held}")

    def obeys(self, holding: Holding) -> None:
        """It is within its limits again."""
        if claim := self._view.claim_with_uid(holding.claim_uid):
            self._reports.obeys(claim)

    async def evict(self, holding: Holding, reason: str) -> None:
        """Evict its pod. One that a disruption budget protects stays, and is asked for no more."""
        logger.warning("evicting pod %s/%s: it %s", holding.namespace, holding.pod_name, reason)
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": holding.namespace, "name": holding.pod_name},
            "deleteOptions": {"preconditions": {"uid": holding.pod_uid}},
        }
        try:
            await self._api.create(PODS, eviction, subresource="eviction")
        except ClientError as error:
            logger.error("pod %s/%s: %s", holding.namespace, holding.pod_name, error)
