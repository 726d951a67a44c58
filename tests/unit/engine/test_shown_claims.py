"""`kubectl get vgpuclaims` shows the pod of a claim that waits, and that a claim is deleted."""

from __future__ import annotations

from typing import Any

from builders import a_claim, a_container, a_pod, a_request
from replica import Replica
from vgpu_api.crd import KINDS
from vgpu_api.names import ANNOTATION_CLAIM, ANNOTATION_SLOTS_ADDED, FINALIZER_IN_USE
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine.claims.describe import REPORT_DELETION_AFTER_S
from vgpu_operator.engine.scheduling.reservation import OFFERED_S
from vgpu_operator.extender.wire import BindRequest

TOO_MUCH = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 999_000}


def a_user(name: str = "pod-1", **fields: Any) -> Any:
    annotations = {ANNOTATION_CLAIM: "mine", ANNOTATION_SLOTS_ADDED: "main"}
    return a_pod(name, annotations=annotations, **fields)


def columns(raw: dict[str, Any]) -> dict[str, str]:
    """Return the printed columns of an object, by the paths of the CustomResourceDefinition."""
    (kind,) = (kind for kind in KINDS if kind.plural == "vgpuclaims")
    return {column.name: _at(raw, column.path) for column in kind.columns}


def _at(raw: Any, path: str) -> str:
    head, _, condition = path.partition(".conditions[?(@.type==")
    for step in head.strip(".").split("."):
        raw = (raw or {}).get(step)
    if condition:
        type_, _, field = condition.partition(")].")
        found = [each for each in raw.get("conditions", []) if f'"{each["type"]}"' == type_]
        raw = found[0].get(field) if found else ""
    return str(raw or "")


def said(replica: Replica, name: str = "mine") -> str:
    return columns(replica.api.claim(name))["MESSAGE"]


def delete(replica: Replica, name: str = "mine", **metadata: Any) -> None:
    """Delete the claim like kubectl; a finalizer keeps it."""
    raw = replica.api.claim(name)
    raw["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", **metadata}
    replica.claim(VGPUClaim.read(raw))


async def runs(replica: Replica) -> None:
    """Let a user's claim serve a running pod."""
    replica.device()
    replica.claim(a_claim("mine", requests=[a_request(memory="4Gi")]))
    pod = a_user()
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    await replica.settle()
    assert (
        await replica.binder.bind(BindRequest("default", "pod-1", "uid-of-pod-1", "node-1")) == ""
    )
    replica.news.pod_changed(a_user(node="node-1", resource_version=500, phase="Running"))
    await replica.settle()


async def test_a_claim_of_a_pod_that_waits_shows_the_pod(replica: Replica) -> None:
    replica.device()
    pod = replica.pod("train-0", containers=[a_container(limits=TOO_MUCH)])
    replica.offer(pod)
    await replica.told()
    shown = columns(replica.claim_of(pod).to_wire())
    assert (shown["STATE"], shown["POD"], shown["NODE"]) == ("Pending", "train-0", "")


async def test_a_users_claim_shows_the_pod_that_waits_with_it(replica: Replica) -> None:
    replica.device()
    replica.claim(a_claim("mine", requests=[a_request(memory="999Gi")]))
    await replica.settle()
    assert columns(replica.api.claim("mine"))["POD"] == ""
    pod = a_user("train-0")
    replica.api.put(PODS, pod.to_wire())
    replica.news.pod_changed(pod)
    replica.offer(pod)
    await replica.told()
    assert columns(replica.api.claim("mine"))["POD"] == "train-0"


async def test_a_claim_shows_the_pod_that_it_serves_and_none_after_it(replica: Replica) -> None:
    await runs(replica)
    assert columns(replica.api.claim("mine"))["POD"] == "pod-1"
    raw = replica.api.claim("mine")
    raw["status"]["released"] = {"allocationID": raw["status"]["allocation"]["id"]}
    replica.claim(VGPUClaim.read(raw))
    await replica.settle()
    shown = columns(replica.api.claim("mine"))
    assert (shown["STATE"], shown["POD"]) == ("Released", "")


async def test_a_claim_whose_reservation_expired_shows_the_pod_that_waits_on(
    replica: Replica,
) -> None:
    replica.device()
    pod = replica.offered("train-0")
    await replica.settle()
    replica.time += OFFERED_S
    await replica.settle()
    shown = columns(replica.claim_of(pod).to_wire())
    assert (shown["REASON"], shown["POD"]) == ("ReservationExpired", "train-0")


async def test_a_claim_that_is_deleted_while_its_pod_runs_says_so_at_once(
    replica: Replica,
) -> None:
    await runs(replica)
    delete(replica)
    await replica.settle()
    shown = columns(replica.api.claim("mine"))
    assert (shown["STATE"], shown["REASON"]) == ("Terminating", "BeingDeleted")
    assert (shown["NODE"], shown["POD"]) == ("node-1", "pod-1")
    assert shown["MESSAGE"] == "keeps 1 GPU on node-1 until pod pod-1 has ended"
    assert replica.api.claim("mine")["status"]["allocation"]


async def test_a_claim_that_waits_for_the_agent_says_so_after_a_moment(replica: Replica) -> None:
    await runs(replica)
    replica.news.pod_gone("uid-of-pod-1")
    delete(replica)
    await replica.settle()
    writes = len(replica.api.log)
    replica.time += REPORT_DELETION_AFTER_S - 1
    await replica.settle()
    assert len(replica.api.log) == writes, "a pod's end as it should be costs no write more"
    replica.time += 1
    await replica.settle()
    assert columns(replica.api.claim("mine"))["STATE"] == "Terminating"
    assert "until the agent there reports" in said(replica)


async def test_what_the_deletion_waits_for_is_brought_up_to_date(replica: Replica) -> None:
    await runs(replica)
    delete(replica)
    await replica.settle()
    replica.news.pod_gone("uid-of-pod-1")
    await replica.told()
    replica.time += REPORT_DELETION_AFTER_S
    await replica.settle()
    assert "until the agent there reports" in said(replica)


async def test_a_deletion_that_waits_for_somebody_elses_finalizer_names_it(
    replica: Replica,
) -> None:
    replica.claim(a_claim("mine", requests=[a_request()]))
    await replica.settle()
    delete(replica, finalizers=[FINALIZER_IN_USE, "example.com/backup"])
    await replica.settle()
    replica.time += REPORT_DELETION_AFTER_S
    await replica.settle()
    shown = columns(replica.api.claim("mine"))
    assert shown["STATE"] == "Terminating"
    assert shown["MESSAGE"] == "waits for its finalizers: example.com/backup"


async def test_a_deletion_is_written_once_and_the_claim_goes_when_its_pod_has_ended(
    replica: Replica,
) -> None:
    await runs(replica)
    delete(replica)
    await replica.settle()
    writes = len(replica.api.log)
    replica.time += 3600
    await replica.settle()
    assert len(replica.api.log) == writes
    raw = replica.api.claim("mine")
    raw["status"]["released"] = {"allocationID": raw["status"]["allocation"]["id"]}
    replica.news.pod_gone("uid-of-pod-1")
    replica.claim(VGPUClaim.read(raw))
    await replica.settle()
    after = replica.api.claim("mine")
    assert after["metadata"]["finalizers"] == []
    assert "allocation" not in after["status"]
