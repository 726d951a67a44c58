"""The current pods and claims, read from the writes, so that waiting for a pod needs no request.

A campaign waits for a hundred pods at once. Polling the API server for each would be most of its
load, and the polls would be affected by faults.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.readiness import plural


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod or a claim as it was last written; for a claim only name, UID and owner are set.

    Attributes:
        owner: The name of the pod that owns it; empty if none does.
    """

    name: str
    uid: str
    phase: str = ""
    reason: str = ""
    node: str = ""
    owner: str = ""


@dataclass(slots=True)
class Sightings:
    """All pods and claims of the campaign's namespace; subscribe `saw` to the writes.

    Attributes:
        claim_uids: The UIDs of all claims that ever existed.
    """

    namespace: str
    claim_uids: set[str] = field(default_factory=set)
    _pods: dict[str, Seen] = field(default_factory=dict)
    _claims: dict[str, Seen] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, write: WriteEvent) -> None:
        """Apply a write; called in another thread."""
        if write.resource == plural(PODS):
            table = self._pods
        elif write.resource == plural(VGPU_CLAIMS):
            table = self._claims
        else:
            return
        obj = write.object
        if obj["metadata"].get("namespace") != self.namespace:
            return
        seen = _seen(obj)
        with self._lock:
            if table is self._claims:
                self.claim_uids.add(seen.uid)
            if write.type != "DELETED":
                table[seen.name] = seen
            elif seen.name in table and table[seen.name].uid == seen.uid:
                del table[seen.name]

    def pod(self, name: str) -> Seen | None:
        """Return the pod of that name, or None."""
        return self._pods.get(name)

    def claim_of(self, pod: str) -> Seen | None:
        """Return a claim that the pod owns, or None."""
        with self._lock:
            return next((claim for claim in self._claims.values() if claim.owner == pod), None)

    def phases(self) -> Mapping[str, str]:
        """Return the phase of each pod by name."""
        with self._lock:
            return {name: seen.phase for name, seen in self._pods.items()}


def _seen(obj: Mapping[str, Any]) -> Seen:
    metadata, status = obj["metadata"], obj.get("status") or {}
    owners = metadata.get("ownerReferences") or ()
    return Seen(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase", ""),
        reason=status.get("reason", ""),
        node=obj["spec"].get("nodeName", ""),
        owner=next((owner["name"] for owner in owners if owner["kind"] == "Pod"), ""),
    )
