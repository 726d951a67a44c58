"""Compares the grants that containers saw at their start with those in the claims at that time.

Each container of a campaign first writes a record (`pods.py`). The claims' grants are recorded with
the time of each write, in the API server's thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from oracle import after_shrinking
from vgpu_api.quantity import MIB
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_api.v1alpha1 import AllocatedDevice, VGPUClaim
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.readiness import plural
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.page import read_page
from vgpu_nodeagent.errors import PageDamaged

Devices = tuple[tuple[str, int, int], ...]
"""UUID, MiB and cores of each device of a container, in order."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record that a container wrote at its start."""

    pod_uid: str
    container: str
    pid: int
    at: float
    visible: str
    page: Path


@dataclass(slots=True)
class GrantObserver:
    """An observer of both sides; subscribe `saw` to the API server's writes.

    Attributes:
        folder: The folder of the containers' records.
        delivery_s: The longest time from a write to its observation.
        findings: A text for each container that was alive when its devices were released.
    """

    folder: Path
    delivery_s: float = 0.0
    findings: list[str] = field(default_factory=list)
    _claims: dict[str, VGPUClaim] = field(default_factory=dict)
    _delivered: dict[str, list[tuple[float, VGPUClaim | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def saw(self, write: WriteEvent) -> None:
        """Record the grants that a claim shows from now on."""
        if write.resource != plural(VGPU_CLAIMS):
            return
        claim = VGPUClaim.read(write.object)
        uid = claim.metadata.uid
        gone = write.type == "DELETED"
        before = self._claims.get(uid)
        self._claims[uid] = claim
        self._delivered[uid].append((time.time(), None if gone else claim))
        reserved = before.status.reserved_for if before is not None else None
        if before is None or reserved is None or not reserved.pod_uid:
            return
        for record in _records(self.folder, reserved.pod_uid):
            kept = frozenset() if gone else _held(claim, record.container)
            if _held(before, record.container) - kept and _lives(record):
                self.findings.append(
                    f"container {record.container} of {reserved.pod_name} ran when the devices "
                    f"of claim {claim.metadata.name} were given back"
                )

    def verdicts(self) -> list[str]:
        """Return a text for each container that saw anything but its own grant."""
        return [*self.findings, *self._mismatches()]

    def records(self) -> int:
        """Return the number of containers that wrote a record."""
        return sum(1 for _ in _records(self.folder, "*"))

    def _mismatches(self) -> Iterator[str]:
        for record in _records(self.folder, "*"):
            granted = list(self._granted(record))
            try:
                page = read_page(record.page)
            except PageDamaged as error:
                yield f"{_who(record)}: {error}"
                continue
            seen = tuple((d.uuid, d.memory_bytes // MIB, d.cores) for d in page.devices)
            if page.state is not PageState.GRANT:
                yield f"{_who(record)} started with a page that says {page.state.name}"
            elif seen not in granted:
                yield f"{_who(record)} was limited to {seen}; its claim gave {granted or None}"
            elif record.visible != ",".join(uuid for uuid, _, _ in seen):
                yield f"{_who(record)} was shown {record.visible}; its claim gave {granted}"

    def _granted(self, record: Record) -> Iterator[Devices]:
        """Yield the grants that the container may have had at the moment of its record.

        There may be several, because writes are observed late and a resize takes time.
        """
        for told in list(self._delivered.values()):  # the recorder keeps adding to it
            before = [claim for at, claim in told if at <= record.at]
            during = [c for at, c in told if record.at < at <= record.at + self.delivery_s]
            for claim in (*before[-1:], *during):
                if claim is None:
                    continue
                reserved, allocation = claim.status.reserved_for, claim.status.allocation
                is_ours = reserved is not None and reserved.pod_uid == record.pod_uid
                if not is_ours or allocation is None:
                    continue
                yield _devices(allocation.devices, record.container)
                if claim.metadata.generation > 1:
                    # A container of a smaller request starts with less before the allocation shows
                    # it: the agent reports first.
                    yield _devices(after_shrinking(claim), record.container)


def _devices(devices: Iterable[AllocatedDevice], container: str) -> Devices:
    return tuple(
        (device.uuid, device.memory_mib, device.cores)
        for device in devices
        if device.request in (container, "")
    )


def _held(claim: VGPUClaim, container: str) -> frozenset[tuple[str, str, str]]:
    """Return the devices that a container may use, with the ids of their grants."""
    allocation, reserved = claim.status.allocation, claim.status.reserved_for
    if allocation is None or reserved is None:
        return frozenset()
    return frozenset(
        (allocation.id, reserved.pod_uid, device.uuid)
        for device in allocation.devices
        if device.request in (container, "")
    )


def _records(folder: Path, pod_uid: str) -> Iterator[Record]:
    for path in folder.glob(f"{pod_uid}.*.seen"):
        uid, container, pid, _ = path.name.split(".")
        at, visible = path.read_text().split("\n")[:2]
        yield Record(uid, container, int(pid), float(at), visible, path.with_suffix(".page"))


def _lives(record: Record) -> bool:
    """Return True if the process still runs; one that waits to be reaped does not."""
    try:
        environment = Path(f"/proc/{record.pid}/environ").read_bytes()
    except OSError:
        return False
    return f"POD_UID={record.pod_uid}".encode() in environment


def _who(record: Record) -> str:
    return f"container {record.container} of pod {record.pod_uid} (at {record.at:.3f})"
