"""Checks who ends for whom, and that groups start with enough of their pods.

It reads all writes of the campaign's namespace. A pod that goes although no user has deleted it was
evicted for another one, by the operator or by the scheduler.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from vgpu_api.core import PodGroup
from vgpu_local.apiserver.storage import WriteEvent

LATE_S = 30.0
"""A decision may rest on anything that was true within this many seconds before it."""
_KINDS = frozenset({"pods", "vgpuclaims.vgpu.dev", "podgroups.scheduling.k8s.io", "events"})


@dataclass(slots=True)
class _Seen:
    """A pod; `waited_at` is when it was last seen without a node."""

    name: str
    priority: int
    group: str
    has_node: bool
    waited_at: float = float("-inf")


@dataclass(slots=True)
class Precedence:
    """An observer of priorities and groups; subscribe `saw` to the API server's writes.

    Attributes:
        namespace: The namespace whose pods it judges.
        deleted: The names of pods that users have deleted.
        hopeless: The names of pods that fit nowhere.
        clock: Returns monotonic seconds.
        findings: A text for each broken rule.
        victims: How many pods have been evicted.
        gangs: The names of groups of which enough pods have started.
    """

    namespace: str
    deleted: Collection[str]
    hopeless: Collection[str]
    clock: Callable[[], float] = time.monotonic
    findings: list[str] = field(default_factory=list)
    victims: int = 0
    gangs: set[str] = field(default_factory=set)
    _pods: dict[str, _Seen] = field(default_factory=dict)
    _going: set[str] = field(default_factory=set)
    _least: dict[str, int] = field(default_factory=dict)
    _ready: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def saw(self, write: WriteEvent) -> None:
        """Check a write; called in the API server's thread."""
        if write.resource not in _KINDS:
            return
        obj, gone = write.object, write.type == "DELETED"
        if obj["metadata"].get("namespace") != self.namespace:
            return
        match write.resource:
            case "pods":
                self._pod(obj, gone=gone)
            case "vgpuclaims.vgpu.dev":
                self._claim(obj)
            case "podgroups.scheduling.k8s.io" if not gone:
                self._least[obj["metadata"]["name"]] = PodGroup.model_validate(obj).least
            case "events" if obj.get("reason") == "Preempting":
                self._preempts(str((obj.get("involvedObject") or {}).get("name")))

    def _pod(self, obj: dict[str, Any], *, gone: bool) -> None:
        metadata, spec = obj["metadata"], obj["spec"]
        uid, name, has_node = metadata["uid"], metadata["name"], bool(spec.get("nodeName"))
        before = self._pods.get(uid)
        group = str((spec.get("schedulingGroup") or {}).get("podGroupName", ""))
        seen = _Seen(name, int(spec.get("priority") or 0), group, has_node)
        seen.waited_at = self.clock() if not has_node or before is None else before.waited_at
        self._pods[uid] = seen
        is_going = gone or bool(metadata.get("deletionTimestamp"))
        if is_going and uid not in self._going:
            self._going.add(uid)
            if name not in self.deleted:
                self._is_evicted(seen)
        if before is not None and has_node and not before.has_node:
            self._starts(uid, seen)

    def _claim(self, obj: dict[str, Any]) -> None:
        status = obj.get("status") or {}
        if status.get("allocation"):
            self._is_ready(str((status.get("reservedFor") or {}).get("podUID", "")))

    def _is_ready(self, uid: str) -> None:
        seen = self._pods.get(uid)
        if seen is not None and seen.group:
            self._ready[seen.group].add(uid)

    # Rules.

    def _starts(self, uid: str, seen: _Seen) -> None:
        """Check that enough pods of a group have devices when one of them gets its node."""
        if not seen.group:
            return
        self._is_ready(uid)
        least, ready = self._least[seen.group], self._ready[seen.group]
        if len(ready) < least:
            text = f"{len(ready)} of {least} pods of {seen.group} had devices"
            self.findings.append(f"{text} when {seen.name} got its node")
        elif sum(self._pods[each].has_node for each in ready) >= least:
            self.gangs.add(seen.group)

    def _is_evicted(self, victim: _Seen) -> None:
        """Check that a more important pod waits, or did, that fits somewhere."""
        self.victims += 1
        since = self.clock() - LATE_S
        if not any(
            each.priority > victim.priority
            and each.waited_at >= since
            and each.name not in self.hopeless
            for each in self._pods.values()
        ):
            text = f"pod {victim.name} of priority {victim.priority} was evicted"
            self.findings.append(f"{text}, and nobody more important waited")

    def _preempts(self, name: str) -> None:
        if name in self.hopeless:
            self.findings.append(f"others were evicted for pod {name}, which fits nowhere")
