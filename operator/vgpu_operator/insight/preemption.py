"""Says which pods would make way for a pod that waits, by the search that the operator preempts by.

Nobody is evicted, and preemption need not be enabled: a cluster's administrator should see what it
would do before turning it on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from vgpu_api.reasons import Reason
from vgpu_operator.demand import Demand
from vgpu_operator.engine.gpu_pod import GPUPod
from vgpu_operator.engine.preemption.choose import Choice, Preemptor, search
from vgpu_operator.engine.preemption.open_preemptions import Victim
from vgpu_operator.engine.preemption.preempt_due import in_words
from vgpu_operator.engine.preemption.victims import is_in_gang
from vgpu_operator.engine.state import State
from vgpu_operator.placement import NodeFilter

_NO_POD = "a claim without a pod preempts nobody"
_NEVER = "its preemptionPolicy is Never"
_GANG = "its group of pods waits for room"
_IN_VAIN = "its victims have ended before, and it got nothing"
_QUOTA = "the quota of its namespace is used up, and evictions do not change that"
_BUDGETS_UNKNOWN = "disruption budgets and PodGroups are not known here"


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
        node: The node on which room would be made; empty: nobody would be preempted.
        victims: Who would make way, the most important first.
        victims_hidden: The number of victims in namespaces that may not be read.
        why_not: The reason why nobody would be preempted; empty if somebody would.
        not_judged: What the choice leaves out because it could not be read.
    """

    enabled: bool
    message: str
    node: str = ""
    victims: Sequence[PreemptedPod] = field(default_factory=tuple)
    victims_hidden: int = 0
    why_not: str = ""
    not_judged: str = ""


@dataclass(frozen=True, slots=True)
class MakesWay:
    """The victims on a node, the most important first, or why nobody would be preempted."""

    node: str = ""
    victims: tuple[Victim, ...] = ()
    why_not: str = ""

    @property
    def namespaces(self) -> set[str]:
        """Return the namespaces of all victims."""
        return {_namespace(each) for each in self.victims}


def who_makes_way(
    state: State, pod: GPUPod | None, demand: Demand, nodes: NodeFilter, refused: Reason
) -> MakesWay:
    """Return who would make way for a waiting pod, or why nobody would.

    Args:
        state: The engine's state; it is not modified.
        pod: The pod; None: an Immediate claim waits, or one that no pod uses.
        demand: Its request for devices.
        nodes: The nodes that it may use apart from devices.
        refused: Why no node can serve it.
    """
    why_not = _NO_POD if pod is None else _why_not(state, pod, refused)
    if pod is None or why_not:
        return MakesWay(why_not=why_not)
    best: Choice | None = None
    for found in search(state, Preemptor(pod, demand, nodes)):
        best = found
    if best is None:
        return MakesWay(why_not=_beyond_help(state, pod))
    if not best.victims:
        return MakesWay(why_not=f"what ends anyway on {best.node} suffices")
    return MakesWay(best.node, best.victims)


def would_preempt(state: State, found: MakesWay, readable: Container[str]) -> WouldPreempt:
    """Describe the victims that `who_makes_way` found.

    Args:
        state: The engine's state.
        found: The victims, or why there are none.
        readable: The namespaces whose pods may be named; others are only counted.
    """
    enabled = state.config.scheduling.preemption.enabled
    off = "" if enabled else "preemption is off"
    if found.why_not:
        message = _joined("; ", f"Would preempt nobody: {found.why_not}", off)
        return WouldPreempt(enabled, message, why_not=found.why_not)
    shown = [each for each in found.victims if _namespace(each) in readable]
    hidden = sum(max(len(each.pods), 1) for each in found.victims if each not in shown)
    not_judged = "" if state.preemptions.budgets.are_listed else _BUDGETS_UNKNOWN
    text = f"Would preempt {_joined(', ', in_words(shown), _of_others(hidden))} on {found.node}"
    return WouldPreempt(
        enabled=enabled,
        message=_joined("; ", text, off, not_judged),
        node=found.node,
        victims=tuple(pod for victim in shown for pod in _preempted(victim)),
        victims_hidden=hidden,
        not_judged=not_judged,
    )


def _of_others(count: int) -> str:
    return f"{count} pod{'s' if count > 1 else ''} of other namespaces" if count else ""


def _why_not(state: State, pod: GPUPod, refused: Reason) -> str:
    """Return why the pod preempts nobody, whatever runs on the nodes; empty if it may."""
    if pod.pod.spec.preemption_policy == "Never":
        return _NEVER
    if is_in_gang(state, pod):
        return _GANG
    if pod.uid in state.preemptions.in_vain:
        return _IN_VAIN
    if refused is Reason.RESOURCE_QUOTA_NOT_FIT:
        return _QUOTA
    return ""


def _beyond_help(state: State, pod: GPUPod) -> str:
    """Return why the search found nobody."""
    rules = state.config.scheduling.preemption
    gap = rules.min_gap
    if pod.priority - gap <= state.cache.lowest_priority():
        more = f" by more than {gap}" if gap else ""
        return f"no pod with devices has a priority lower than {pod.priority}{more}"
    allowed = " that a disruption budget lets go" if rules.budgets == "Respect" else ""
    where = " of its namespace" if rules.scope == "Namespace" else ""
    return f"it would fit on no node even without the less important pods{where}{allowed}"


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
