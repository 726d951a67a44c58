"""kube-scheduler's own preemption, for a shortage that only it sees, such as CPU.

Its dry run chooses pods of lower priority on some nodes, and possibly on none in versions after
1.37. It asks the extender, then deletes the pods of one node of the answer and nominates that node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vgpu_api.resources import NODES, PODS
from vgpu_operator.errors import NotLeading
from vgpu_operator.extender.preempting import preempt
from vgpu_operator.extender.wire import PreemptRequest, Victims

from .server import copied

if TYPE_CHECKING:
    from .scheduler import Scheduler


async def preempt_as_kube_scheduler(scheduler: Scheduler, pod: dict[str, Any]) -> None:
    """Let a refused pod preempt others, if its policy allows that and there are any."""
    if pod["spec"].get("preemptionPolicy") == "Never":
        return
    proposed = _dry_run(scheduler, pod)
    if not proposed:
        return
    request = PreemptRequest(copied(pod), {n: Victims(uids) for n, uids in proposed.items()})
    try:
        answer = await preempt(scheduler.leader().engine, request)
    except NotLeading:
        return
    found = {node: list(victims.uids) for node, victims in answer.victims.items()}
    uid = pod["metadata"]["uid"]
    scheduler.judge.now = scheduler.now
    scheduler.judge.making_way.answered(uid, proposed, found)
    if not found:
        return
    node = scheduler.rng.choice(sorted(found))
    for victim in found[node]:
        _end(scheduler, victim)
    there = scheduler.server.pod(uid)
    if there is not None and not there["spec"].get("nodeName"):
        status = {**there["status"], "nominatedNodeName": node}
        scheduler.server.put(PODS, {**there, "status": status})
        scheduler.again(uid, scheduler.rng.uniform(2.0, 8.0))


def _dry_run(scheduler: Scheduler, pod: dict[str, Any]) -> dict[str, list[str]]:
    """Return pods to end by node: some of lower priority on each, or none on any node."""
    priority, rng = pod["spec"].get("priority") or 0, scheduler.rng
    has_victims = rng.random() < 0.7
    found = {}
    for node in scheduler.server.all(NODES):
        name = node["metadata"]["name"]
        weaker = [
            other["metadata"]["uid"]
            for other in scheduler.server.all(PODS)
            if other["spec"].get("nodeName") == name
            and (other["spec"].get("priority") or 0) < priority
            and other["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        if weaker and has_victims:
            found[name] = rng.sample(weaker, rng.randint(1, len(weaker)))
        elif not has_victims:
            found[name] = []
    return found


def _end(scheduler: Scheduler, uid: str) -> None:
    """Delete a victim regardless of budgets, as kube-scheduler does."""
    victim = scheduler.server.pod(uid)
    if victim is None:
        return
    victim = copied(victim)
    said = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    conditions = [*(victim["status"].get("conditions") or []), said]
    scheduler.server.end_pod({**victim, "status": {**victim["status"], "conditions": conditions}})
