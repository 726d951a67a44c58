"""Logs one line for each decision: a claim was allocated, refused, released, or expired.

The line is written only after the effect has succeeded, because a decision whose write failed does
not count. The pure functions that decide do not log.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from vgpu_api.conditions import ALLOCATED, find
from vgpu_api.reasons import Reason
from vgpu_api.v1alpha1 import VGPUClaimStatus
from vgpu_operator.engine.claims.status import BEING_DELETED, RELEASED, RESERVATION_EXPIRED
from vgpu_operator.engine.effects import WriteClaim
from vgpu_operator.ledger import ClaimKey

logger = logging.getLogger(__name__)

_REMEMBERED = 10_000
_ENDS = {RELEASED: "released", RESERVATION_EXPIRED: "expired"}
_NO_DECISION = (Reason.WAITING_FOR_POD, Reason.TEMPLATE, BEING_DELETED)


class DecisionLog:
    """Logs decisions at INFO, each only once although several writes of a claim repeat it."""

    def __init__(self) -> None:
        self._last: OrderedDict[ClaimKey, tuple[str, str]] = OrderedDict()

    def log(self, effect: WriteClaim) -> None:
        """Log the decision in a claim's written status, unless it has been logged before."""
        key, status = effect.key, effect.status
        allocated = find(status.conditions, ALLOCATED)
        if allocated is None:
            return
        said = effect.allocation_id, "" if effect.allocation_id else allocated.message
        if self._last.get(key) == said:
            return
        self._last[key] = said
        self._last.move_to_end(key)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        if allocated.reason in _NO_DECISION:
            return
        if status.allocation is not None:
            _log_allocated(key, status)
            return
        decision = _ENDS.get(allocated.reason, "refused")
        fields = {"claim": "/".join(key), "decision": decision, "reason": allocated.reason}
        logger.info("claim %s/%s %s: %s: %s", *key, decision, allocated.reason, allocated.message,
                    extra=fields)  # fmt: skip


def _log_allocated(key: ClaimKey, status: VGPUClaimStatus) -> None:
    allocation, reserved = status.allocation, status.reserved_for
    assert allocation is not None
    devices = [f"{d.uuid} ({d.memory_mib} MiB, {d.cores} %)" for d in allocation.devices]
    pod = "" if reserved is None else reserved.pod_name
    fields = {
        "claim": "/".join(key),
        "decision": "allocated",
        "node": allocation.node_name,
        "devices": [device.uuid for device in allocation.devices],
        "allocation": allocation.id,
        **({"pod": f"{key.namespace}/{pod}"} if pod else {}),
    }
    logger.info("claim %s/%s allocated on %s%s: %s", *key, allocation.node_name,
                f" for pod {pod}" if pod else "", ", ".join(devices), extra=fields)  # fmt: skip
