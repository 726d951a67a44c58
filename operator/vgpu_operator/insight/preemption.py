"""Finds the pods that would be evicted for a waiting pod, by the operator's own search.

Nobody is evicted, and preemption need not be enabled: a cluster's administrator should see what it
would do before turning it on.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Sequence
from dataclasses import dataclass, field

from vgpu_api.config import ClusterConfig
from vgpu_api.reasons import Reason
from vgpu_operator.engine.gpu_pod import GPUPod, GroupKey
from vgpu_operator.engine.preemption.open_preemptions import Victim
from vgpu_operator.engine.preemption.preempt_due import in_words
from vgpu_operator.engine.preemption.together import (
    Placed,
    search_alone,
    search_together,
    victims_of,
)
from vgpu_operator.engine.preemption.victims import importance, preempts_with
from vgpu_operator.engine.scheduling.groups import can_start, without_devices
from vgpu_operator.engine.scheduling.kept import MOST_OF_A_GROUP
from vgpu_operator.engine.state import State

_NO_POD = "a claim without a pod preempts nobody"
_NEVER = "its preemptionPolicy is Never"
_INCOMPLETE = "too few pods of its group are there to start"
_IN_VAIN = "its victims have ended before, and it got nothing"
_QUOTA = "the quota of its namespace is used up, and evictions do not change that"
_BUDGETS_UNKNOWN = "disruption budgets and PodGroups are not known here"
_OFF = " if preemption were enabled"


@dataclass(frozen=True, slots=True)
class PreemptedPod:
    """A pod that would be evicted, or an Immediate claim without a pod that would be taken back.

    Attributes:
        pod: NAMESPACE/NAME of the pod; empty: the claim has none.
        claim: NAMESPACE/NAME of the claim that holds the devices.
        priority: The pod's priority, or that of the claim.
        protected: True if a disruption budget would be broken.
    """

    pod: str
    claim: str
    priority: int
    protected: bool


@dataclass(frozen=True, slots=True)
class WouldPreempt:
    """The preemption that the operator would begin now for a waiting pod.

    Attributes:
        enabled: True if `scheduling.preemption.enabled` is set, so that the operator does it.
        message: The same as the other fields, for people.
        nodes: The nodes on which room would be made, several for a group of pods; empty: nobody
            would be preempted.
        victims: The pods that would be evicted, the most important first.
        victims_hidden: The number of victims in namespaces that may not be read.
        why_not: The reason why nobody would be preempted; empty if somebody would.
        not_judged: What the choice leaves out because it could not be read.
    """

    enabled: bool
    message: str
    nodes: Sequence[str] = field(default_factory=tuple)
    victims: Sequence[PreemptedPod] = field(default_factory=tuple)
    victims_hidden: int = 0
    why_not: str = ""
    not_judged: str = ""


@dataclass(frozen=True, slots=True)
class MakesWay:
    """The victims, the most important first, or why no pod would be preempted.

    Attributes:
        nodes: The nodes on which room would be made.
        victims: The pods that would be evicted.
        why_not: The reason why no pod would be evicted; else empty.
        group: The name of the group for which they would be evicted; empty for a pod alone.
        placed: The pods for which they would be evicted, and their places.
    """

    nodes: tuple[str, ...] = ()
    victims: tuple[Victim, ...] = ()
    why_not: str = ""
    group: str = ""
    placed: tuple[Placed, ...] = ()

    @property
    def namespaces(self) -> set[str]:
        """Return the namespaces of all victims."""
        return {_namespace(each) for each in self.victims}


def who_makes_way(state: State, pod: GPUPod | None, refused: Reason | None) -> MakesWay:
    """Return the pods that would be evicted for a waiting pod or its group, or why none would be.

    Args:
        state: The engine's state; it is not modified.
        pod: The pod; None: an Immediate claim waits, or one that no pod uses.
        refused: Why no node can serve it; None if one can, even if not its whole group.
    """
    why_not = _NO_POD if pod is None else _why_not(state, pod, refused)
    if pod is None or why_not:
        return MakesWay(why_not=why_not)
    group = preempts_with(state, pod)
    search = search_alone(state, pod) if group is None else search_together(state, group)
    placed = _outcome(search)
    if not placed:
        return MakesWay(why_not=_beyond_help(state, pod, group))
    nodes = tuple(sorted({each.choice.node for each in placed}))
    victims = tuple(sorted(victims_of(placed), key=importance))
    if not victims:
        return MakesWay(why_not=f"what ends anyway on {', '.join(nodes)} suffices")
    return MakesWay(nodes, victims, "", "" if group is None else group.name, placed)


def _outcome(search: Generator[object, None, tuple[Placed, ...]]) -> tuple[Placed, ...]:
    """Run a search to its end, without pauses."""
    while True:
        try:
            next(search)
        except StopIteration as ended:
            found: tuple[Placed, ...] = ended.value
            return found


def would_preempt(state: State, found: MakesWay, readable: Container[str]) -> WouldPreempt:
    """Describe the victims that `who_makes_way` found.

    Args:
        state: The engine's state.
        found: The victims, or why there are none.
        readable: The namespaces whose pods may be named; others are only counted.
    """
    enabled = state.config.scheduling.preemption.enabled
    off = "" if enabled else _OFF
    if found.why_not:
        message = f"Would preempt nobody{off}: {found.why_not}"
        return WouldPreempt(enabled, message, why_not=found.why_not)
    shown = [each for each in found.victims if _namespace(each) in readable]
    hidden = sum(max(len(each.pods), 1) for each in found.victims if each not in shown)
    not_judged = "" if state.preemptions.budgets.are_listed else _BUDGETS_UNKNOWN
    text = f"Would preempt {_joined(', ', in_words(shown), _of_others(hidden))}"
    text += f" on {', '.join(found.nodes)}"
    text += f" for group {found.group}" if found.group else ""
    return WouldPreempt(
        enabled=enabled,
        message=_joined("; ", text + off, not_judged),
        nodes=found.nodes,
        victims=tuple(pod for victim in shown for pod in _preempted(victim)),
        victims_hidden=hidden,
        not_judged=not_judged,
    )


def unknown(config: ClusterConfig, why: str) -> WouldPreempt:
    """Return the answer for a pod if it is not known which pods would be evicted for it."""
    message = f"Not known which pods would be evicted: {why}"
    return WouldPreempt(config.scheduling.preemption.enabled, message, not_judged=why)


def _of_others(count: int) -> str:
    return f"{count} pod{'s' if count > 1 else ''} of other namespaces" if count else ""


def _why_not(state: State, pod: GPUPod, refused: Reason | None) -> str:
    """Return why the pod may preempt no pod on any node; empty if it may."""
    group = preempts_with(state, pod)
    pods = [pod] if group is None else [pod, *without_devices(state, group)]
    if any(each.pod.spec.preemption_policy == "Never" for each in pods):
        return _NEVER
    if group is not None and not can_start(state, group):
        return _INCOMPLETE
    if any(each.uid in state.preemptions.in_vain for each in pods):
        return _IN_VAIN
    if refused is Reason.RESOURCE_QUOTA_NOT_FIT:
        return _QUOTA
    return ""


def _beyond_help(state: State, pod: GPUPod, group: GroupKey | None) -> str:
    """Return why the search found no victims."""
    rules = state.config.scheduling.preemption
    gap = rules.min_gap
    if pod.priority - gap <= state.cache.lowest_priority():
        more = f" by more than {gap}" if gap else ""
        return f"no pod with devices has a priority lower than {pod.priority}{more}"
    allowed = " that a disruption budget lets go" if rules.budgets == "Respect" else ""
    where = " of its namespace" if rules.scope == "Namespace" else ""
    others = f"even without the less important pods{where}{allowed}"
    if group is None:
        return f"it would fit on no node {others}"
    return f"its group would not fit {others}, or needs more than {MOST_OF_A_GROUP} devices"


def _joined(by: str, *texts: str) -> str:
    return by.join(filter(None, texts))


def _namespace(victim: Victim) -> str:
    return victim.keys[0].namespace


def _preempted(victim: Victim) -> Iterable[PreemptedPod]:
    protected = victim.is_protected
    for pod in victim.pods:
        name = f"{pod.pod.metadata.namespace}/{pod.pod.metadata.name}"
        claim = f"{pod.claim.namespace}/{pod.claim.name}"
        yield PreemptedPod(name, claim, pod.priority, protected)
    for key in () if victim.pods else victim.keys:
        yield PreemptedPod("", f"{key.namespace}/{key.name}", victim.priority, protected)
