"""The judge's rules about pods that are evicted for others.

The operator says for which pod it evicts another one, and is held to that by the judge's own count
of the objects in the API server. Most rules hold at any time. The rules about what would have
sufficed are judged only while there are no faults: a replica with a late watch acts correctly on
its outdated state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import VGPUClaim

from .gangs import group_of

if TYPE_CHECKING:
    from .judge import Judge

MINUTE_S = 60.0
SEEN_WITHIN_S = 0.7
"""Without faults, the operator knows of a change after this time."""
SERVED_WITHIN_S = 60.0
"""After its last victim was evicted, a pod has its devices within this time."""
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class Limits:
    """The configured limits of preemption; see `PreemptionConfig`."""

    is_enabled: bool = True
    may_force: bool = False
    min_gap: int = 0
    per_minute: int = 30


@dataclass(frozen=True, slots=True)
class Eviction:
    """An eviction that the operator has decided.

    Attributes:
        by: The replica.
        victim: The UID of the pod to evict.
        preemptor: The UID of the pod that it makes way for.
        at: When.
        is_forced: True if the pod is deleted, which no budget refuses.
    """

    by: str
    victim: str
    preemptor: str
    at: float
    is_forced: bool = False


@dataclass(slots=True)
class Account:
    """The evictions for one pod on one node, until it has devices or the attempt has failed."""

    first: Eviction
    node: str
    victims: dict[str, float] = field(default_factory=dict)  # UID → when
    has_gang: bool = False
    is_closed: bool = False

    @property
    def last_at(self) -> float:
        """Return the time of the last eviction."""
        return max(self.victims.values(), default=self.first.at)


@dataclass(slots=True)
class MakingWay:
    """Judges evictions, and the answers to the verb preempt."""

    judge: Judge
    limits: Limits
    accounts: dict[str, Account] = field(default_factory=dict)  # by preemptor
    ever: set[str] = field(default_factory=set)  # preemptors
    _times: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _ending: dict[str, float] = field(default_factory=dict)  # UID of a pod → since when
    _born: dict[str, float] = field(default_factory=dict)
    _evicted: dict[str, frozenset[str]] = field(default_factory=dict)
    """Pods of gangs evicted in times without faults, with those that ran beside them."""
    _allocated: dict[str, str] = field(default_factory=dict)  # claim's UID → allocation's id

    # Observations.

    def evicts(self, eviction: Eviction) -> None:
        """Note that a replica has decided to evict a pod for another one."""
        victim = self.judge.pods[eviction.victim]
        preemptor = self.judge.pods[eviction.preemptor]
        self._is_allowed(eviction, victim, preemptor)
        self.ever.add(eviction.preemptor)
        account = self.accounts.get(eviction.preemptor)
        if account is not None and not account.is_closed and self.judge.is_calm:
            is_elsewhere = account.node != victim.spec.node_name
            is_of_gang = self.judge.gangs.is_gang(victim) or bool(group_of(preemptor))
            if is_elsewhere and not account.has_gang and not is_of_gang:
                self._broken("two preemptions", victim, preemptor, f"one on {account.node} is open")
        for other in self.accounts.values():
            rival = self.judge.pods[other.first.preemptor]
            if other.node == victim.spec.node_name and _priority(rival) < _priority(preemptor):
                other.is_closed = True  # its devices are promised to a more important pod
        if account is None or account.is_closed or account.first.by != eviction.by:
            account = self.accounts[eviction.preemptor] = Account(eviction, victim.spec.node_name)
        if self.judge.is_calm and eviction.victim not in account.victims:
            self._is_of_use(account, victim, preemptor)
            if self.judge.gangs.is_gang(victim):
                self._evicted[eviction.victim] = self.judge.gangs.running_with(victim)
        account.victims[eviction.victim] = eviction.at
        account.has_gang = account.has_gang or self.judge.gangs.is_gang(victim)

    def was_refused(self, pod_uid: str) -> None:
        """Note that a budget has forbidden an eviction."""
        self._evicted.clear()  # the rest of a gang may stay
        for account in self.accounts.values():
            account.is_closed = account.is_closed or pod_uid in account.victims

    def answered(
        self,
        pod_uid: str,
        proposed: Mapping[str, Collection[str]],
        answer: Mapping[str, Collection[str]],
    ) -> None:
        """Note the answer to the verb preempt: the pods to end, by node."""
        preemptor = self.judge.pods[pod_uid]
        for node, uids in answer.items():
            more = set(uids) - set(proposed.get(node, ()))
            if node not in proposed or not set(proposed[node]) <= set(uids) or not uids:
                self.judge.broken("verb", f"{node}: {sorted(uids)} of {proposed.get(node)}")
            if more and not self.limits.is_enabled:
                self.judge.broken("verb", f"{sorted(more)} though preemption is off")
            for uid in more:
                self._may_go(self.judge.pods[uid], preemptor)
            if not self.judge.is_calm or not self.judge.is_countable(preemptor):
                continue
            if node not in self._room_for(preemptor, self._ending.keys() | set(uids)):
                text = (
                    f"pod {preemptor.metadata.name} does not fit on {node} without {sorted(uids)}"
                )
                self.judge.broken("verb in vain", text)

    def pod(self, pod: Pod, *, gone: bool) -> None:
        """Note that a pod has changed."""
        uid, now = pod.metadata.uid, self.judge.now
        self._born.setdefault(uid, now)
        if gone or pod.is_terminal or pod.metadata.deletion_timestamp:
            self._ending.setdefault(uid, now)
        for account in self._accounts_of(pod):
            account.is_closed = account.is_closed or gone or pod.is_bound or uid in self._ending

    def claim(self, claim: VGPUClaim, by: str) -> None:
        """Record a changed claim, which may have received the devices that evictions freed."""
        allocation, reserved = claim.status.allocation, claim.status.reserved_for
        if allocation is None or self._allocated.get(claim.metadata.uid) == allocation.id:
            return
        self._allocated[claim.metadata.uid] = allocation.id
        taker = None if reserved is None else self.judge.pods.get(reserved.pod_uid)
        if taker is None:
            return
        for own in self._accounts_of(taker):
            own.is_closed = True
        decided = self.judge.decided_at(allocation)
        for account in self.accounts.values():
            if account.is_closed or account.node != allocation.node_name:
                continue
            if _priority(taker) > _priority(self.judge.pods[account.first.preemptor]):
                account.is_closed = self._is_in_the_way(account, claim, taker)
            elif account.first.by == by and decided > account.first.at + SEEN_WITHIN_S:
                self._is_not_overtaken(account, claim, taker)

    def node_changed(self, node: str) -> None:
        """Note that a node or one of its devices was replaced, or that its health changed."""
        for account in self.accounts.values():
            account.is_closed = account.is_closed or account.node == node

    def restored(self) -> None:
        """Record that the API server's data was restored from a backup."""
        self.accounts.clear()
        self._ending.clear()

    # Rules that hold at any time.

    def _is_allowed(self, eviction: Eviction, victim: Pod, preemptor: Pod) -> None:
        self._may_go(victim, preemptor)
        if not self.limits.is_enabled:
            self._broken("preempts though off", victim, preemptor, "")
        if preemptor.spec.preemption_policy == "Never":
            self._broken("never", victim, preemptor, "its policy is Never")
        if eviction.is_forced and not self.limits.may_force:
            self._broken("budget", victim, preemptor, "budgets are to be respected")
        times = self._times[eviction.by]
        times.append(eviction.at)
        recent = sum(at > eviction.at - MINUTE_S for at in times)
        if recent > self.limits.per_minute:
            self._broken("limit", victim, preemptor, f"{recent} in a minute")

    def _may_go(self, victim: Pod, preemptor: Pod) -> None:
        if _priority(victim) >= _priority(preemptor) - self.limits.min_gap:
            text = f"{_priority(victim)} against {_priority(preemptor)}"
            self._broken("priority", victim, preemptor, text)
        if not is_movable(victim):
            self._broken("daemon", victim, preemptor, "it comes back to the same node")

    # Rules for times without faults.

    def _is_of_use(self, account: Account, victim: Pod, preemptor: Pod) -> None:
        """Check that the pod fits once all victims have gone, and does not fit without this one."""
        node = victim.spec.node_name
        if not self.judge.is_countable(preemptor):
            return
        if self.judge.gangs.starts_with_others(preemptor):
            gone = self._claims_of(self.weaker_than(preemptor), with_immediate=True)
            if not self.judge.gangs.fits_beside(preemptor, gone):
                self._broken("in vain", victim, preemptor, "its group does not fit in any case")
            return
        room = self._room_for(preemptor, self.weaker_than(preemptor), with_immediate=True)
        if node not in room and not (room and self.judge.gangs.is_gang(victim)):
            self._broken("in vain", victim, preemptor, f"nobody's end helps on {node}")
        goes_with_others = self.judge.gangs.is_gang(victim) and any(
            group_of(self.judge.pods[uid]) == group_of(victim) for uid in account.victims
        )
        if not goes_with_others and not self._rivals(preemptor):
            going = {uid for uid, since in self._ending.items() if self._is_known(since)}
            if there := self._room_for(preemptor, going | account.victims.keys()):
                self._broken("needless", victim, preemptor, f"it fits on {sorted(there)} anyway")
        if not self.limits.may_force and self.judge.is_protected(victim, SEEN_WITHIN_S):
            self._broken("protected", victim, preemptor, "its budget allows no disruption")

    def _is_not_overtaken(self, account: Account, claim: VGPUClaim, taker: Pod) -> None:
        """Check that no equally important pod takes the devices that evictions freed."""
        preemptor = self.judge.pods[account.first.preemptor]
        if not self.judge.is_calm or account.first.at < self.judge.calm_since:
            return
        if not self.judge.is_countable(preemptor) or self.judge.gangs.is_gang(preemptor):
            return
        if self._is_in_the_way(account, claim, taker):
            text = f"pod {taker.metadata.name} took what was freed on {account.node}"
            self.judge.broken("overtaken", f"{text} for pod {preemptor.metadata.name}")

    def _is_in_the_way(self, account: Account, claim: VGPUClaim, taker: Pod) -> bool:
        """Return True if a pod took devices freed for another pod, or for a part of a gang."""
        preemptor = self.judge.pods[account.first.preemptor]
        if not self.judge.is_countable(preemptor) or self.judge.gangs.is_gang(preemptor):
            return True
        going = {uid for uid in self._ending if uid != taker.metadata.uid} | account.victims.keys()
        before = self._room_for(preemptor, going, without=claim.metadata.uid)
        return account.node in before and account.node not in self._room_for(preemptor, going)

    def at_rest(self) -> None:
        """Check that preempting pods have their devices, and that none could still preempt."""
        for uid, former in self._evicted.items():
            victim = self.judge.pods[uid]
            if self.judge.gangs.run_in_part(victim, former):
                self.judge.broken("halves", f"of a gang {victim.metadata.name} was evicted alone")
        for account in self.accounts.values():
            if account.first.at < self.judge.calm_since or account.is_closed:
                continue
            if self.judge.now - account.last_at > SERVED_WITHIN_S and not self._was_robbed(account):
                preemptor = self.judge.pods[account.first.preemptor]
                text = f"{len(account.victims)} pods were evicted for it and it waits"
                self.judge.broken("in vain", f"pod {preemptor.metadata.name}: {text}")
        if self.limits.is_enabled:
            for pod in self._first_waiter():
                self._may_not_preempt(pod)

    def _may_not_preempt(self, pod: Pod) -> None:
        if not self.judge.is_countable(pod) or self._rivals(pod):
            return
        weaker = {
            uid
            for uid in self.weaker_than(pod)
            if not self.judge.is_protected(self.judge.pods[uid], float("inf"))
            and not self.judge.gangs.is_gang(self.judge.pods[uid])
        }
        there = self._room_for(pod, weaker, frees_quota=False)
        if there and not self._room_for(pod, (), frees_quota=False):
            text = f"less important pods could make way on {', '.join(sorted(there))}"
            self.judge.broken("preempts nobody", f"pod {pod.metadata.name}: {text}")

    def _first_waiter(self) -> Iterator[Pod]:
        """Yield the first waiting pod of the queue, if it may preempt."""
        waiting = [pod for pod in self.judge.waiting() if not pod.is_bound]
        waiting.sort(key=lambda pod: (-_priority(pod), pod.metadata.creation_timestamp or ""))
        for pod in waiting[:1]:
            is_barred = pod.spec.preemption_policy == "Never" or pod.metadata.uid in self.ever
            if not is_barred and pod.spec.scheduling_group is None:
                yield pod

    def _was_robbed(self, account: Account) -> bool:
        """Return True if a more important pod may have taken its place, or the quota is used up."""
        preemptor = self.judge.pods[account.first.preemptor]
        more_important = (
            pod.spec.node_name == account.node and _priority(pod) > _priority(preemptor)
            for uid, pod in self.judge.pods.items()
            if self._born.get(uid, 0.0) >= account.first.at - SERVED_WITHIN_S
        )
        return self.judge.has_quota or any(more_important)

    # Parts.

    def _accounts_of(self, pod: Pod) -> Iterator[Account]:
        """Yield the account of a pod, and those of its group, which preempts as one."""
        for uid, account in self.accounts.items():
            preemptor = self.judge.pods[uid]
            group = preemptor.spec.scheduling_group
            is_fellow = group is not None and group == pod.spec.scheduling_group
            if uid == pod.metadata.uid or (is_fellow and self.judge.gangs.is_gang(preemptor)):
                yield account

    def weaker_than(self, preemptor: Pod) -> set[str]:
        """Return the UIDs of the pods that may be evicted for this one, or end anyway."""
        return {
            uid
            for uid in self.judge.there
            for pod in (self.judge.pods[uid],)
            if uid in self._ending
            or (
                pod.is_bound
                and is_movable(pod)
                and _priority(pod) < _priority(preemptor) - self.limits.min_gap
            )
        }

    def _rivals(self, preemptor: Pod) -> bool:
        """Return True if devices may be kept for requests that are as important at this moment."""
        if self.judge.has_waiting_claims and _priority(preemptor) <= 0:
            return True
        return any(
            _priority(pod) >= _priority(preemptor)
            for pod in self.judge.waiting()
            if pod.metadata.uid != preemptor.metadata.uid
        )

    def _is_known(self, since: float) -> bool:
        return self.judge.now - since > SEEN_WITHIN_S

    def _room_for(
        self,
        pod: Pod,
        ended: Collection[str],
        *,
        without: str = "",
        with_immediate: bool = False,
        frees_quota: bool = True,
    ) -> frozenset[str]:
        """Return the nodes on which a pod fits if these pods have ended.

        An Immediate claim keeps its devices when its pod ends, unless the operator takes it back.
        """
        gone = self._claims_of(ended, with_immediate=with_immediate) | {without}
        return self.judge.room_without(pod, gone, frees_quota=frees_quota)

    def _claims_of(self, ended: Collection[str], *, with_immediate: bool) -> set[str]:
        """Return the UIDs of the claims that are free once these pods have ended."""
        gone = set[str]()
        for claim in self.judge.claims.values():
            reserved = claim.status.reserved_for
            if claim.spec.binding_mode == "Immediate":
                if with_immediate:
                    gone.add(claim.metadata.uid)
            elif reserved is not None and reserved.pod_uid in ended:
                gone.add(claim.metadata.uid)
        return gone

    def _broken(self, rule: str, victim: Pod, preemptor: Pod, text: str) -> None:
        named = f"pod {victim.metadata.name} for pod {preemptor.metadata.name}"
        self.judge.broken(rule, f"{named}: {text}")


def is_movable(pod: Pod) -> bool:
    """Return True unless something puts the pod back on the same node."""
    owners = pod.metadata.owner_references
    is_of_set = any(owner.controller and owner.kind == "DaemonSet" for owner in owners)
    return not is_of_set and _MIRROR not in pod.metadata.annotations


def _priority(pod: Pod) -> int:
    return pod.spec.priority or 0
