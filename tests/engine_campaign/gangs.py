"""The judge's rules about groups of pods that start together or not at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vgpu_api.core import Pod, PodGroup
from vgpu_api.v1alpha1 import VGPUClaim

if TYPE_CHECKING:
    from .judge import Judge

LATE_S = 60.0
"""A replica may believe for this long in a pod or a group that no longer exists."""
GATHERED_WITHIN_S = 1.5
"""Devices are reserved for a group within this time after one of its Binds was called."""
HELD_AT_MOST_S = 25.0
"""A group that does not start has nothing written for longer; a reservation lasts for 15 s."""


@dataclass(slots=True)
class Gangs:
    """Judges the devices of pods in groups.

    Attributes:
        has_filters: True in Extender mode, where a group's pods get devices at Bind alone.
    """

    judge: Judge
    has_filters: bool = True
    _least: defaultdict[str, list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _members: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _gone: dict[str, float] = field(default_factory=dict)  # UID of a pod → when
    _begun: set[str] = field(default_factory=set)  # pods that ever had a node, or no gate
    _asked: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _asked_last: dict[str, float] = field(default_factory=dict)  # by the pod's UID
    _allocated: dict[str, str] = field(default_factory=dict)  # claim's UID → allocation's id
    _holds_since: dict[str, float] = field(default_factory=dict)
    _born: dict[str, float] = field(default_factory=dict)  # group → when its first pod came

    # Observations.

    def group(self, group: PodGroup, *, gone: bool) -> None:
        """Note that a PodGroup has changed."""
        if not gone:
            self._least[group.metadata.name].append((self.judge.now, group.least))

    def pod(self, pod: Pod, *, gone: bool, by: str) -> None:
        """Note that a pod has changed; it may have a node now, or its gate may be gone."""
        name, uid = group_of(pod), pod.metadata.uid
        if not name:
            return
        if uid not in self._members[name]:
            self._join(name, uid)
        if gone or pod.metadata.deletion_timestamp or pod.is_terminal:
            self._gone.setdefault(uid, self.judge.now)
        has_begun = pod.is_bound or (not self.has_filters and not pod.spec.scheduling_gates)
        if has_begun and uid not in self._begun:
            self._begun.add(uid)
            if by != "world":
                self._starts_with_others(name, pod)

    def _join(self, name: str, uid: str) -> None:
        """Add a pod to its group, which is a new one with its first pod."""
        former, now = self._members[name], self.judge.now
        self._members[name] = {
            each for each in former if now - self._gone.get(each, now) <= LATE_S
        } | {uid}
        if not former & self.judge.there:
            self._born[name] = now

    def bind_asked(self, name: str, uid: str) -> None:
        """Record that the scheduler has called Bind for a group's pod."""
        self._asked[name].append(self.judge.now)
        self._asked_last[uid] = self.judge.now

    def claim(self, claim: VGPUClaim, pod: Pod | None) -> None:
        """Note that a claim has changed."""
        allocation = claim.status.allocation
        name = "" if pod is None else group_of(pod)
        if allocation is None or self._allocated.get(claim.metadata.uid) == allocation.id:
            return
        self._allocated[claim.metadata.uid] = allocation.id
        if pod is None or not name or not self.has_filters or pod.metadata.uid in self._begun:
            return
        decided = self.judge.decided_at(allocation)
        if not any(at - 0.01 <= decided <= at + GATHERED_WITHIN_S for at in self._asked[name]):
            self.judge.broken("provisional", f"{claim.metadata.name} is written before any Bind")

    def restored(self) -> None:
        """Note that an older state of everything was restored, in which some pods are not there."""
        uids = (uid for uids in self._members.values() for uid in uids)
        self._gone = {uid: self.judge.now for uid in uids if uid not in self.judge.there}
        self._holds_since.clear()

    # Rules.

    def is_gang(self, pod: Pod) -> bool:
        """Return True if several pods of the pod's group must run together."""
        name = group_of(pod)
        return bool(name) and self.least(name) > 1

    def starts_with_others(self, pod: Pod) -> bool:
        """Return True if the pod can only start together with others of its gang."""
        name = group_of(pod)
        return self.is_gang(pod) and len(self._standing(name)) < self.least(name)

    def fits_beside(self, pod: Pod, ended: Collection[str]) -> bool:
        """Return True if the missing pods of the pod's gang fit once these claims hold nothing."""
        name = group_of(pod)
        missing = self.least(name) - len(self._standing(name))
        without = [
            each for each in self.waiting().get(name, ()) if not self.judge.asks_for_gpus(each)
        ]
        return self.judge.copies_of(pod, without=ended) >= missing - len(without)

    def least(self, name: str) -> int:
        """Return the lowest minimum of the group that was valid in the last minute."""
        said = self._least[name]
        known = [least for at, least in said if at <= self.judge.now - LATE_S][-1:]
        known += [least for at, least in said if at > self.judge.now - LATE_S]
        return min(known, default=1)

    def _starts_with_others(self, name: str, pod: Pod) -> None:
        """Check that enough pods have a node, or devices and a Bind, when one gets its node."""
        least = self.least(name)
        ready = sum(self._is_ready(uid) for uid in self._members[name])
        if ready < least and not self.judge.may_be_unaware:
            text = f"{ready} of {least} pods of {name} have devices as {pod.metadata.name} starts"
            self.judge.broken("halves", text)

    def _is_ready(self, uid: str) -> bool:
        if self.judge.now - self._gone.get(uid, self.judge.now) > LATE_S:
            return False
        if uid in self._begun:
            return True
        if uid in self._gone or not self.judge.asks_for_gpus(self.judge.pods[uid]):
            return True
        has_asked = self.judge.now - self._asked_last.get(uid, -LATE_S) < LATE_S
        return bool(self.judge.allocations_of(uid)) and (has_asked or not self.has_filters)

    def _standing(self, name: str) -> set[str]:
        """Return the pods of a group that have started, without those of an earlier group."""
        begun = self._begun & self._members[name]
        return {
            uid for uid in begun if self.judge.now - self._gone.get(uid, self.judge.now) <= LATE_S
        }

    def look(self) -> None:
        """Check that groups which do not start hold nothing for long; called at each tick."""
        for name, uids in self._members.items():
            waiting = [uid for uid in uids if uid not in self._begun and uid not in self._gone]
            holds = [uid for uid in waiting if self.judge.allocations_of(uid)]
            if not holds or len(self._standing(name)) >= self.least(name):
                self._holds_since.pop(name, None)
                continue
            since = self._holds_since.setdefault(name, self.judge.now)
            if since >= self.judge.calm_since and self.judge.now - since > HELD_AT_MOST_S:
                self.judge.broken("group holds", f"{name} has devices and does not start")
                del self._holds_since[name]

    def at_rest(self) -> None:
        """Check that no group runs in part because of us, and that none waits that would fit."""
        for name, uids in self._members.items():
            if self._born[name] < self.judge.calm_since:
                continue
            least, begun = self.least(name), self._standing(name)
            # kube-scheduler binds pods without GPUs itself, independently of the others.
            has_begun = any(self.judge.asks_for_gpus(self.judge.pods[uid]) for uid in begun)
            were_there = not any(self._gone.get(uid, 0.0) > self._born[name] for uid in uids)
            if has_begun and len(begun) < least and were_there:
                self.judge.broken("halves", f"{len(begun)} of {least} pods of {name} run")
        for name, pods in self._complete(on_empty=False):
            if not self.judge.may_be_kept(pods[0].spec.priority or 0):
                self.judge.broken("group waits", f"{name} though {len(pods)} pods fit")

    def may_start_alone(self, pod: Pod) -> bool:
        """Return True if the pod needs no other pod to start."""
        name = group_of(pod)
        return not name or (bool(self._least[name]) and not self.is_gang(pod))

    def starving(self, priority: int) -> Iterator[str]:
        """Yield gangs of at least this priority that would fit, but only in an empty cluster."""
        fit_now = {name for name, _ in self._complete(on_empty=False)}
        for name, pods in self._complete(on_empty=True):
            if name not in fit_now and (pods[0].spec.priority or 0) >= priority:
                yield name

    def _complete(self, *, on_empty: bool) -> Iterator[tuple[str, list[Pod]]]:
        """Yield the waiting, complete gangs that fit next to the running pods or without them."""
        for name, pods in self.waiting().items():
            missing = self.least(name) - len(self._standing(name))
            asking = [pod for pod in pods if self.judge.asks_for_gpus(pod)]
            if len(pods) < max(missing, 1) or not asking:
                continue
            if self.judge.copies_of(
                asking[0], without=self.judge.claims if on_empty else ()
            ) >= len(asking):
                yield name, asking

    def waiting(self) -> dict[str, list[Pod]]:
        """Return the waiting pods of each gang; those that request devices are alike."""
        found = defaultdict[str, list[Pod]](list)
        for pod in self.judge.waiting():
            if self.is_gang(pod) and not pod.is_bound:
                found[group_of(pod)].append(pod)
        return {name: pods for name, pods in found.items() if name}

    def running_with(self, pod: Pod) -> frozenset[str]:
        """Return the pods of the same group that run now."""
        name = group_of(pod)
        return frozenset(uid for uid in self._standing(name) if uid not in self._gone)

    def run_in_part(self, pod: Pod, former: Collection[str]) -> bool:
        """Return True if some of the pods that ran with this one keep running, but too few.

        Pods without GPUs are not counted: the operator does not end them.
        """
        left = [uid for uid in former if uid not in self._gone]
        with_gpus = any(self.judge.asks_for_gpus(self.judge.pods[uid]) for uid in left)
        return with_gpus and len(left) < self.least(group_of(pod))


def group_of(pod: Pod) -> str:
    """Return the name of the pod's PodGroup; empty if it names none."""
    group = pod.spec.scheduling_group
    return "" if group is None else group.pod_group_name
