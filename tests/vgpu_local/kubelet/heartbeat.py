"""Renews the node's Lease in `kube-node-lease`, so that the node stays Ready.

A node controller that sees no renewal for some 40 s marks the node as unreachable and taints it.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from vgpu_api.resources import LEASES
from vgpu_client.api import Api
from vgpu_client.errors import ClientError, NotFound

NAMESPACE = "kube-node-lease"
LASTS_S = 40
RENEWED_EVERY_S = 10.0

log = logging.getLogger(__name__)


async def keep_lease(api: Api, node: str) -> None:
    """Renew the node's Lease forever; a failed renewal is retried with the next one."""
    while True:
        try:
            await _renew(api, node)
        except ClientError as error:
            log.info("lease of node %s: %s", node, error)
        await asyncio.sleep(RENEWED_EVERY_S)


async def _renew(api: Api, node: str) -> None:
    spec = {
        "holderIdentity": node,
        "leaseDurationSeconds": LASTS_S,
        "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    try:
        await api.merge_patch(LEASES, node, {"spec": spec}, namespace=NAMESPACE)
    except NotFound:
        lease = {"metadata": {"name": node, "namespace": NAMESPACE}, "spec": spec}
        await api.create(LEASES, lease)
