"""The kubelet's own records of which pod has which slots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from vgpu_nodeagent.errors import KubeletUnavailable
from vgpu_nodeagent.kubelet.kubelet_checkpoint import KubeletEntry, read_kubelet_checkpoint
from vgpu_nodeagent.kubelet.pod_resources import PodListing, PodResources


@dataclass(frozen=True, slots=True)
class KubeletRecords:
    """The places where the kubelet shows its allocations.

    Attributes:
        resource: The resource name under which our slots are registered.
        pod_resources: The service that lists which pod holds which slots.
        checkpoint: The file with the kubelet's record of allocations.
        pods: The kubelet's directory of pods, by UID.
        resource_claims: The file with the kubelet's record of ResourceClaims; None if the agent
            prepares none.
    """

    resource: str
    pod_resources: PodResources
    checkpoint: Path
    pods: Path
    resource_claims: Path | None = None

    async def read(self) -> tuple[PodListing, Sequence[KubeletEntry]]:
        """Return what PodResources lists and then, without an await, the checkpoint's entries.

        Raises:
            KubeletUnavailable: One of them cannot be read.
        """
        return await self.pod_resources.list(), self.entries()

    def entries(self) -> Sequence[KubeletEntry]:
        """Return the entries for our resource in the kubelet's checkpoint.

        Raises:
            KubeletUnavailable: The file cannot be read, or has an unknown format.
        """
        return read_kubelet_checkpoint(self.checkpoint, resource=self.resource)

    def remembered(self, resource_claim_uids: Collection[str]) -> frozenset[str]:
        """Return those of the ResourceClaims that the kubelet will unprepare later.

        The kubelet keeps a record of a claim from before it calls Prepare until after Unprepare.
        The file is internal to the kubelet, so it is not interpreted: a UID that is anywhere in it
        counts. A kubelet whose file was removed forgets its claims when it restarts.

        Raises:
            KubeletUnavailable: The file cannot be read.
        """
        if not resource_claim_uids or self.resource_claims is None:
            return frozenset()
        try:
            content = self.resource_claims.read_text(errors="replace")
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise KubeletUnavailable(f"{self.resource_claims}: {error.strerror}") from error
        return frozenset(uid for uid in resource_claim_uids if uid in content)

    def has_directory(self, pod_uid: str) -> bool:
        """Return True while the kubelet has not cleaned up after the pod."""
        return (self.pods / pod_uid).exists()
