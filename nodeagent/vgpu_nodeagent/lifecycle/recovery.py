"""Loads the former agent's record, or rebuilds it from other records."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from vgpu_nodeagent.enforcement.page import PageContent
from vgpu_nodeagent.errors import CheckpointDamaged, PageDamaged
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.lifecycle.rebuild import rebuild, recovered, share_entries

logger = logging.getLogger(__name__)


async def load_record(node: LocalNode) -> None:
    """Load the checkpoint, or rebuild it; close slot allocations that it does not have.

    Raises:
        KubeletUnavailable: The kubelet's record is needed and cannot be read.
        OSError: A record cannot be read or written.
    """
    checkpoint = node.checkpoint
    try:
        found = checkpoint.load()
    except CheckpointDamaged as error:
        aside = checkpoint.set_aside(datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f"))
        logger.error("%s; moved to %s, rebuilding the state from other records", error, aside.name)
        found = False
    if not found:
        await _rebuild(node)
    for leftover in node.allocations.on_disk() - set(checkpoint.state.slot_allocations):
        logger.info("closing allocation %s, which is not in the checkpoint", leftover)
        node.allocations.close(leftover)


async def _rebuild(node: LocalNode) -> None:
    """Rebuild the state from the records of the kubelet, the API server and the pages."""
    entries = node.kubelet.entries()
    pages = {name: _page(node, name) for name in node.allocations.on_disk()}
    if not entries and not pages:
        return
    await node.view.wait_synced()
    claims, pods = node.view.claims.objects.values(), node.view.pods.objects.values()
    state = rebuild(
        entries=[*entries, *share_entries(claims, pods, pages)],
        claims=claims,
        pages=pages,
        capacities=node.inventory.capacities(),
        now=time.time(),
    )
    devices = node.inventory.devices
    static = frozenset(filter(node.inventory.is_static, devices))
    node.checkpoint.commit(recovered(state, pages, devices, static=static))
    logger.warning(
        "rebuilt %d allocations of %d claims",
        len(state.slot_allocations),
        len(state.claim_allocations),
    )


def _page(node: LocalNode, name: str) -> PageContent | None:
    try:
        return node.allocations.content(name)
    except PageDamaged as error:
        logger.error("%s", error)
        return None
