"""The slots in use that the kubelet has no record of, because its checkpoint was lost.

Removing `kubelet_internal_checkpoint` and restarting the kubelet is a common remedy. The kubelet
then takes every slot to be free and would hand those in use to new pods, whose containers the
agent has to refuse for as long as the old pods run.
"""

from __future__ import annotations

import logging

from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.kubelet.kubelet_checkpoint import read_kubelet_checkpoint
from vgpu_nodeagent.kubelet.local_node import LocalNode

logger = logging.getLogger(__name__)


class ForgottenSlots:
    """Compares the agent's record with the kubelet's.

    Args:
        node: The records of both.

    Attributes:
        slots: Those that the kubelet had no record of at the last look.
    """

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self._read: tuple[int, int] | None = None
        self._recorded: frozenset[str] = frozenset()
        self.slots: frozenset[str] = frozenset()

    def look(self) -> bool:
        """Compare; return whether other slots than before are forgotten.

        The kubelet's file is read only when it is another one than at the last look.
        """
        before = self.slots
        path = self._node.kubelet_checkpoint
        try:
            status = path.stat()
            version = (status.st_ino, status.st_mtime_ns)
        except OSError:
            version = (0, 0)
        if version != self._read:
            try:
                entries = read_kubelet_checkpoint(path, resource=self._node.resource)
            except KubeletUnavailable as error:
                # A file that we do not understand is no proof that the kubelet does not.
                logger.warning("which slots the kubelet has on record is unknown: %s", error)
                return False
            self._read = version
            self._recorded = frozenset(slot for entry in entries for slot in entry.slot_ids)
        self.slots = self._in_use() - self._recorded
        if self.slots - before:
            logger.warning(
                "the kubelet has no record of %d slots in use, so they are unhealthy for it: its "
                "checkpoint was removed",
                len(self.slots),
            )
        return self.slots != before

    def _in_use(self) -> frozenset[str]:
        """Return the slots of pods that run, as far as is known.

        A slot allocation is bound at the first start, which the kubelet asks for after it has
        written its record. Of a pod that ends the kubelet forgets the slots first, and the agent
        within seconds: those are no news.
        """
        view = self._node.view
        found: set[str] = set()
        for each in self._node.checkpoint.state.slot_allocations.values():
            if not each.is_bound:
                continue
            pod = view.pod_with_uid(each.pod_uid)
            is_ending = view.is_synced
            if pod is not None:
                is_ending = pod.is_terminal or bool(pod.metadata.deletion_timestamp)
            if not is_ending:
                found.update(each.slot_ids)
        return frozenset(found)
