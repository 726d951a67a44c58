"""Least privilege, judged by the API server's audit log: no right is missing, and none is unused.

The programs run under their own accounts with the roles of manifests/, and one run exercises all
that they do. A request that was refused shows a missing right; a granted right that was never used
is superfluous.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from vgpu_api.names import ANNOTATION_REQUEUE, FIELD_MANAGER_OPERATOR, pod_claim_name
from vgpu_api.resources import (
    EVENTS,
    GPU_DEVICES,
    NODES,
    PODS,
    SECRETS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.errors import ClientError, NotFound
from vgpu_client.transport import Object
from vgpu_local.accounts import AGENT, OPERATOR, SCHEDULER, WEB, WEBHOOK, user
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import T4, Device, GpuNode, device_uuid, t4_node
from vgpu_local.steps import a_claim, a_container, a_pod
from vgpu_operator.engine.scheduling.schedule_one import SAMPLED_FROM

RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False)
ROLES = Resource(RBAC, "v1", "roles", "Role", True)
QUICK = 90.0

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True, slots=True)
class Right:
    """One permission of an account; an empty namespace or name means any."""

    account: str
    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def covers(self, done: Right) -> bool:
        """Return True if this permission covers the one that was used."""
        same = replace(done, namespace=self.namespace, name=self.name) == self
        anywhere = self.namespace in ("", done.namespace)
        return same and anywhere and self.name in ("", done.name)


def granted(cluster: InstalledCluster) -> set[Right]:
    """Return the rights that our own roles grant. Kubernetes' roles for schedulers do not count."""
    rights: set[Right] = set()
    for account in (OPERATOR, WEBHOOK, WEB, AGENT):
        role = cluster.run(cluster.api.get(CLUSTER_ROLES, account[1]))
        rights |= set(_rights(role, user(account), ""))
    for account in (OPERATOR, WEBHOOK, SCHEDULER):
        role = cluster.run(cluster.api.get(ROLES, account[1], namespace=account[0]))
        rights |= set(_rights(role, user(account), account[0]))
    return rights


def _rights(role: Object, account: str, namespace: str) -> Iterator[Right]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield Right(account, verb, group, resource, namespace, name)


def used(events: Sequence[Object]) -> set[Right]:
    """Return the rights that were used and granted."""
    rights = set()
    for event in events:
        code = event.get("responseStatus", {}).get("code", 0)
        if code in (401, 403) or "objectRef" not in event:
            continue
        right = _asked(event)
        if "impersonatedUser" in event:
            rights |= _acting(right)
            continue
        rights.add(right)
        if right.verb == "patch" and code == 201:  # server-side apply created the object
            rights.add(replace(right, verb="create"))
    return rights


def _acting(right: Right) -> set[Right]:
    """Return an agent's rights to act as its node: to impersonate it, and to use the verb as it.

    The node's own rights are not granted by our manifests.
    """
    as_node = Right(right.account, "impersonate:associated-node", "authentication.k8s.io", "nodes")
    return {as_node, replace(right, verb=f"impersonate-on:associated-node:{right.verb}")}


def _asked(event: Object) -> Right:
    ref = event["objectRef"]
    resource = "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)
    return Right(
        event["user"]["username"],
        event["verb"],
        ref.get("apiGroup", ""),
        resource,
        ref.get("namespace", ""),
        ref.get("name", ""),
    )


RELEASED_MEANWHILE = "writes to claims that are allocated there only"
"""An agent may write to a claim whose allocation the operator removes at that moment: it is right
to refuse that, and what the agent had to report is of no interest any more."""


def refused(events: Sequence[Object]) -> list[str]:
    """Return the requests that were refused for lack of a right, or by one of our policies."""
    answers = [(event, event.get("responseStatus", {})) for event in events]
    return [
        f"{_asked(event)}: {answer.get('message')}"
        for event, answer in answers
        if answer.get("code") in (401, 403)
        or (
            "ValidatingAdmissionPolicy" in answer.get("message", "")
            and RELEASED_MEANWHILE not in answer["message"]
        )
    ]


BY_CHANCE = (
    # This happens only if the API server serves PodGroups, and the one of this test does not.
    Right(user(OPERATOR), "watch", "scheduling.k8s.io", "podgroups"),
    Right(user(WEB), "watch", "scheduling.k8s.io", "podgroups"),
    # This happens after a conflict, when an agent was faster to write a claim.
    Right(user(OPERATOR), "get", "vgpu.dev", "vgpuclaims"),
    # This happens when an event is repeated some seconds later with another message.
    Right(user(OPERATOR), "patch", "", "events"),
)
"""Rights that are needed where nothing that these steps do can make sure that they are used."""


def gpu(name: str, mib: int = 2048, **spec: Any) -> Object:
    return a_pod(name, a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}), **spec)


def two_nodes_with_a_device_in_common() -> list[GpuNode]:
    """Copied machine images cause this; the second agent must find out whose device it is."""
    one, two = t4_node("one", 2), t4_node("two", 1)
    return [one, replace(two, devices=(*two.devices, Device(device_uuid("one", 1), T4)))]


@pytest.fixture(scope="module")
def cluster() -> Iterator[InstalledCluster]:
    with InstalledCluster(two_nodes_with_a_device_in_common(), components=["web"]) as running:
        yield running


def create(cluster: InstalledCluster, obj: Object) -> Object:
    resource = PODS if obj["kind"] == "Pod" else VGPU_CLAIMS
    return cluster.run(cluster.api.create(resource, obj))


def delete(cluster: InstalledCluster, name: str, *, namespace: str = "default") -> None:
    cluster.run(cluster.api.delete(PODS, name, namespace=namespace, grace_s=1))


def runs(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def is_set_aside(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(c.get("reason") == "Unschedulable" for c in conditions)


def cordon(cluster: InstalledCluster, *, cordoned: bool) -> None:
    for device in cluster.objects(GPU_DEVICES):
        name, changes = device["metadata"]["name"], {"spec": {"cordoned": cordoned}}
        cluster.run(cluster.api.merge_patch(GPU_DEVICES, name, changes))


def there(cluster: InstalledCluster, resource: Resource, name: str) -> bool:
    try:
        cluster.run(cluster.api.get(resource, name, namespace="default"))
    except NotFound:
        return False
    return True


def a_pod_runs(cluster: InstalledCluster) -> None:
    create(cluster, gpu("plain"))
    cluster.wait_for(PODS, "plain", runs)


def another_vendors_plugin_registers_a_device(cluster: InstalledCluster) -> None:
    written = {"hami.io/node-dcu-register": "DCU-0,4,16384,100,DCU-Z100,0,true,0,hami-core:"}
    cluster.run(cluster.api.merge_patch(NODES, "one", {"metadata": {"annotations": written}}))
    cluster.until(
        lambda: any(
            device.get("status", {}).get("vendor") == "hygon"
            for device in cluster.objects(GPU_DEVICES)
        ),
        lambda: cluster.objects(GPU_DEVICES),
    )


def a_claim_of_a_users_is_deleted_after_its_pod(cluster: InstalledCluster) -> None:
    create(cluster, a_claim("mine", {"memory": "1Gi"}, ttlSecondsAfterUnused=1))
    create(cluster, a_pod("user", a_container(), annotations={"vgpu.dev/claim": "mine"}))
    cluster.wait_for(PODS, "user", runs)
    delete(cluster, "user")
    cluster.until(lambda: not there(cluster, VGPU_CLAIMS, "mine"), lambda: "the claim is there")


def a_pod_that_was_set_aside_is_told_why_and_requeued(cluster: InstalledCluster) -> None:
    cordon(cluster, cordoned=True)
    create(cluster, gpu("patient"))
    cluster.wait_for(PODS, "patient", is_set_aside)
    cluster.until(
        lambda: any(
            event["involvedObject"]["name"] == "patient"
            and event.get("reportingComponent") == FIELD_MANAGER_OPERATOR
            for event in cluster.objects(EVENTS)
        ),
        lambda: cluster.objects(EVENTS),
    )
    cordon(cluster, cordoned=False)
    patient = cluster.wait_for(PODS, "patient", runs)
    assert ANNOTATION_REQUEUE in patient["metadata"]["annotations"]


def of_many_nodes_one_is_nominated(cluster: InstalledCluster) -> None:
    """With this many nodes, kube-scheduler looks only at a sample."""
    names = [f"paper-{number:03}" for number in range(SAMPLED_FROM)]
    for name in names:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        cluster.run(cluster.api.create(NODES, node))
        cluster.run(cluster.api.merge_patch(NODES, name, {"spec": {"taints": None}}))
    cordon(cluster, cordoned=True)
    create(cluster, gpu("sampled"))
    cluster.wait_for(PODS, "sampled", is_set_aside)
    cordon(cluster, cordoned=False)
    cluster.wait_for(PODS, "sampled", runs)
    for name in names:
        cluster.run(cluster.api.delete(NODES, name))


def a_pod_comes_and_goes_while_the_agents_hang(cluster: InstalledCluster) -> None:
    """Its devices are promised to a pod that no agent has ever seen.

    The agents hang instead of stopping, because the kubelet offers no slots of an agent that has
    gone.
    """
    for agent in cluster.agents.values():
        agent.signal(signal.SIGSTOP)
    create(cluster, gpu("missed"))
    cluster.wait_for(PODS, "missed", lambda pod: pod["spec"].get("nodeName"))
    cluster.run(cluster.api.delete(PODS, "missed", namespace="default", grace_s=0))
    for agent in cluster.agents.values():
        agent.kill()
        agent.start()
    tails = [agent.tail for agent in cluster.agents.values()]
    cluster.until(
        lambda: (
            not any(
                claim["metadata"]["name"].startswith("missed-")
                for claim in cluster.objects(VGPU_CLAIMS)
            )
        ),
        lambda: [tail() for tail in tails],
    )


def a_refused_container_starts_at_once_when_its_claim_comes(cluster: InstalledCluster) -> None:
    """A scheduler without an extender may bind a pod once admission has read it."""
    leader = cluster.leader()
    leader.signal(signal.SIGSTOP)
    try:
        made = create(cluster, gpu("straight", schedulerName="asks-nobody"))
        bind = cluster.api.bind_pod(
            namespace="default",
            name="straight",
            uid=made["metadata"]["uid"],
            node="one",
            annotations={},
        )
        cluster.run(bind)
        cluster.until(
            lambda: any(
                event["involvedObject"]["name"] == "straight" for event in cluster.objects(EVENTS)
            ),
            lambda: cluster.objects(EVENTS),
        )
    finally:
        leader.signal(signal.SIGCONT)
    name = pod_claim_name("straight", made["metadata"]["uid"])
    cluster.wait_for(VGPU_CLAIMS, name, lambda claim: claim.get("status", {}).get("allocation"))
    cluster.wait_for(PODS, "straight", runs)
    delete(cluster, "straight")


def certificates_are_issued_anew_and_nothing_restarts(cluster: InstalledCluster) -> None:
    """An administrator has removed the serving pairs; their authority is still there."""
    before = set(cluster.shown())
    for name in ("vgpu-webhook-tls", "vgpu-extender-tls"):
        without = {"data": {"tls.crt": None, "tls.key": None}}
        cluster.run(cluster.api.merge_patch(SECRETS, name, without, namespace="vgpu-system"))
    cluster.until(lambda: not before & set(cluster.shown()), lambda: "the old ones are shown")
    create(cluster, gpu("renewed"))
    cluster.wait_for(PODS, "renewed", runs)


def a_leader_goes_and_the_next_one_places_a_pod(cluster: InstalledCluster) -> None:
    first = cluster.leader()
    first.may_end()
    first.signal(signal.SIGTERM)
    assert first.wait(30) == 0
    create(cluster, gpu("after"))
    cluster.wait_for(PODS, "after", runs)


def a_pod_goes_while_it_is_bound(cluster: InstalledCluster) -> None:
    """kube-scheduler binds a pod that no watch shows any more."""
    gone = {"PodName": "gone", "PodNamespace": "default", "PodUID": "u", "Node": "one"}
    assert "is gone" in cluster.ask_extender("bind", gone)["Error"]


def a_namespace_says_whether_limits_may_be_switched_off(cluster: InstalledCluster) -> None:
    pod = gpu("uncontrolled")
    pod["spec"]["containers"][0]["env"] = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    with pytest.raises(ClientError, match="limits cannot be switched off in this namespace"):
        create(cluster, pod)


def a_visitor_of_the_page_sees_what_he_may_see(cluster: InstalledCluster) -> None:
    page = cluster.start_page()
    status, fleet = page.get("/api/v1/fleet", cluster.token(OPERATOR))
    assert (status, fleet["devices"]["nodes"]) == (200, 2)
    status, fleet = page.get("/api/v1/fleet", cluster.token(SCHEDULER))
    assert (status, fleet["devices"]) == (200, None)
    asked = gpu("asked", priorityClassName="high")
    status, answer = page.get("/api/v1/what-if", cluster.token(OPERATOR), body=json.dumps(asked))
    assert status == 200, answer


def everything_goes(cluster: InstalledCluster) -> None:
    for name in ("plain", "patient", "sampled", "renewed", "after"):
        delete(cluster, name)
    cluster.until(lambda: not cluster.objects(VGPU_CLAIMS), lambda: cluster.objects(VGPU_CLAIMS))


STEPS = (
    a_pod_runs,
    another_vendors_plugin_registers_a_device,
    a_claim_of_a_users_is_deleted_after_its_pod,
    a_pod_that_was_set_aside_is_told_why_and_requeued,
    of_many_nodes_one_is_nominated,
    a_pod_comes_and_goes_while_the_agents_hang,
    a_refused_container_starts_at_once_when_its_claim_comes,
    certificates_are_issued_anew_and_nothing_restarts,
    a_leader_goes_and_the_next_one_places_a_pod,
    a_pod_goes_while_it_is_bound,
    a_namespace_says_whether_limits_may_be_switched_off,
    a_visitor_of_the_page_sees_what_he_may_see,
    everything_goes,
)


def test_no_right_is_missing_and_none_is_unused(cluster: InstalledCluster) -> None:
    for step in STEPS:
        step(cluster)
    asked = used(cluster.audit())
    assert refused(cluster.audit()) == []
    unused = [
        right
        for right in granted(cluster) - set(BY_CHANCE)
        if not any(right.covers(u) for u in asked)
    ]
    assert not unused, "\n".join(map(str, unused))


def test_a_right_that_nobody_uses_would_be_found() -> None:
    right = Right("a", "get", "", "pods", "", "")
    other = Right("a", "get", "", "secrets", "", "one")
    event = {
        "verb": "get",
        "user": {"username": "a"},
        "objectRef": {"resource": "pods", "namespace": "default", "name": "x"},
        "responseStatus": {"code": 200},
    }
    (done,) = used([event])
    assert right.covers(done)
    assert not other.covers(done)
    assert used([{**event, "responseStatus": {"code": 403}}]) == set()
    acting = {right.verb for right in used([{**event, "impersonatedUser": {"username": "n"}}])}
    assert acting == {"impersonate:associated-node", "impersonate-on:associated-node:get"}
    assert refused([{**event, "responseStatus": {"code": 403}}]) != []
