"""Slots in use that the kubelet has no record of, because its checkpoint was lost.

Removing `kubelet_internal_checkpoint` and restarting the kubelet is a common remedy. The kubelet
then considers every slot free and would give those in use to new pods, whose containers the agent
must refuse as long as the old pods run.
"""

from __future__ import annotations

import logging

from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.kubelet.records import KubeletRecords
from vgpu_nodeagent.state.node_view import NodeView
from vgpu_nodeagent.state.slots import SlotRecord

logger = logging.getLogger(__name__)


class ForgottenSlots:
    """Compares the agent's record with the kubelet's.

    Args:
        kubelet: The kubelet's record.
        record: The agent's record.
        view: The pods of this node.

    Attributes:
        slots: The slots in use without a record of the kubelet, at the last look.
    """

    def __init__(self, kubelet: KubeletRecords, record: SlotRecord, view: NodeView) -> None:
        self._kubelet = kubelet
        self._record = record
        self._view = view
        self._read: tuple[int, int] | None = None
        self._recorded: frozenset[str] = frozenset()
        self.slots: frozenset[str] = frozenset()

    def look(self) -> bool:
        """Compare the records; return True if the forgotten slots have changed.

        The kubelet's file is read only if it has changed since the last look.
        """
        before = self.slots
        try:
            status = self._kubelet.checkpoint.stat()
            version = (status.st_ino, status.st_mtime_ns)
        except OSError:
            version = (0, 0)
        if version != self._read:
            try:
                entries = self._kubelet.entries()
            except KubeletUnavailable as error:
                # The kubelet may understand a file that we do not, so its slots are not forgotten.
                logger.warning("cannot read which slots the kubelet has on record: %s", error)
                return False
            self._read = version
            self._recorded = frozenset(slot for entry in entries for slot in entry.slot_ids)
        self.slots = self._in_use() - self._recorded
        if self.slots - before:
            logger.warning(
                "the kubelet has no record of %d slots in use, probably because its checkpoint was "
                "removed; they are shown as unhealthy so that it does not allocate them again",
                len(self.slots),
            )
        return self.slots != before

    def _in_use(self) -> frozenset[str]:
        """Return the slots of running pods, as far as is known.

        A slot allocation is bound at the first start, which the kubelet requests after it has
        written its record. When a pod ends, the kubelet forgets its slots first and the agent
        within seconds, so slots of ending pods do not count.
        """
        found: set[str] = set()
        for each in self._record.state.slot_allocations.values():
            if not each.is_bound:
                continue
            pod = self._view.pod_with_uid(each.pod_uid)
            is_ending = self._view.is_synced
            if pod is not None:
                is_ending = pod.is_terminal or bool(pod.metadata.deletion_timestamp)
            if not is_ending:
                found.update(each.slot_ids)
        return frozenset(found)
