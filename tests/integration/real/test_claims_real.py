"""overlays/claims on each version of Kubernetes, with its stock kube-scheduler.

Every role and policy of the overlay applies, and the programs run under their own accounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from vgpu_api.dra import share_id
from vgpu_api.names import FINALIZER_IN_USE
from vgpu_api.resources import EVENTS, NAMESPACES, PODS, RESOURCE_CLAIMS, VGPU_CLAIMS, Resource
from vgpu_client.api import Api
from vgpu_client.errors import ApiError
from vgpu_client.transport import Object
from vgpu_local.accounts import AGENT, OPERATOR, kubeconfig_with
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_container, a_pod
from vgpu_operator.cli.uninstall import BINDINGS

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False)
TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True
)
SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048, "nvidia.com/gpucores": 20}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def plane(kubernetes_version: MinorVersion) -> Iterator[ControlPlane]:
    with ControlPlane(Options(controllers=True, version=kubernetes_version)) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[InstalledCluster]:
    nodes = [t4_node("one"), t4_node("two")]
    with InstalledCluster(nodes, overlay="claims", lease_s=6, plane=plane) as running:
        yield running


def create(cluster: InstalledCluster, obj: Object, resource: Resource = PODS) -> None:
    cluster.run(cluster.api.create(resource, obj))


def delete(cluster: InstalledCluster, name: str, resource: Resource = PODS) -> None:
    cluster.run(cluster.api.delete(resource, name, namespace="default", grace_s=1))


def bound(cluster: InstalledCluster, name: str) -> Object:
    return cluster.wait_for(PODS, name, lambda pod: pod["spec"].get("nodeName"))


def a_victim(cluster: InstalledCluster) -> Object:
    """Return a pod that runs, and whose ResourceClaim others want."""
    create(cluster, a_pod("victim", a_container(limits=SLICE)))
    return bound(cluster, "victim")


def resource_claim_of(cluster: InstalledCluster, pod: Object) -> Object | None:
    (entry,) = pod["spec"]["resourceClaims"]
    found = cluster.objects(RESOURCE_CLAIMS)
    named = (each for each in found if each["metadata"]["name"] == entry["resourceClaimName"])
    return next(named, None)


def allocation_of(cluster: InstalledCluster, pod: Object) -> Object | None:
    """Return the allocation of the VGPUClaim that is reserved for a pod, or None."""
    return next(
        (
            claim["status"]["allocation"]
            for claim in cluster.objects(VGPU_CLAIMS)
            if claim.get("status", {}).get("reservedFor", {}).get("podUID")
            == pod["metadata"]["uid"]
            and claim["status"].get("allocation")
        ),
        None,
    )


def reasons(cluster: InstalledCluster, name: str) -> set[str]:
    events = cluster.objects(EVENTS)
    return {each["reason"] for each in events if each["involvedObject"]["name"].startswith(name)}


def gone(cluster: InstalledCluster, pod: Object) -> None:
    """Wait until a deleted pod has left neither claims nor a finalizer."""
    cluster.until(
        lambda: resource_claim_of(cluster, pod) is None and not allocation_of(cluster, pod),
        lambda: (resource_claim_of(cluster, pod), cluster.objects(VGPU_CLAIMS)),
    )


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("hami", SLICE),
        ("percentage", {"nvidia.com/gpumem-percentage": 10}),
        ("ack", {"aliyun.com/gpu-mem": 2}),
        ("volcano", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024}),
    ],
)
def test_a_pod_in_any_words_is_bound_by_an_unconfigured_scheduler(
    cluster: InstalledCluster, name: str, limits: Object
) -> None:
    create(cluster, a_pod(name, a_container(limits=limits)))
    pod = bound(cluster, name)
    allocation, claim = allocation_of(cluster, pod), resource_claim_of(cluster, pod)
    assert allocation is not None
    assert claim is not None
    assert pod["spec"]["nodeName"] == allocation["nodeName"]
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["shareID"] == share_id(allocation["id"], "main")
    assert claim["metadata"]["finalizers"] == [FINALIZER_IN_USE]
    delete(cluster, name)
    gone(cluster, pod)


def reviews(plane: ControlPlane) -> int:
    """Return how many reviews of new pods the API server has had from our webhooks."""
    found = plane.get("/metrics", timeout_s=10).decode()
    counter = r'^apiserver_admission_webhook_request_total\{.*name="mutate-pods.*\} (\d+)$'
    return sum(int(count) for count in re.findall(counter, found, re.MULTILINE))


def test_a_pod_in_words_is_reviewed_once(plane: ControlPlane, cluster: InstalledCluster) -> None:
    """The first review makes it name a ResourceClaim, and pods that name one are reviewed, too."""
    before = reviews(plane)
    create(cluster, a_pod("once", a_container(limits=SLICE)))
    assert reviews(plane) == before + 1
    pod = bound(cluster, "once")
    delete(cluster, "once")
    gone(cluster, pod)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_leader_killed_between_the_writes_leaves_a_pod_that_is_bound(
    cluster: InstalledCluster, *, is_made: bool
) -> None:
    name = "made" if is_made else "decided"
    create(cluster, a_pod(name, a_container(limits=SLICE)))
    pod = cluster.wait_for(PODS, name, lambda _: True)
    seen = resource_claim_of if is_made else allocation_of
    cluster.until(lambda: seen(cluster, pod), lambda: cluster.objects(VGPU_CLAIMS))
    leader = cluster.leader()
    leader.kill()
    leader.start()
    pod = bound(cluster, name)
    allocation = allocation_of(cluster, pod)
    assert allocation is not None
    assert allocation["nodeName"] == pod["spec"]["nodeName"]
    delete(cluster, name)
    gone(cluster, pod)


def a_replica_set(name: str) -> Object:
    """Return a ReplicaSet of two pods that must not share a node, for a reason we do not read."""
    labels = {"app": name}
    apart = {
        "labelSelector": {"matchLabels": labels},
        "topologyKey": HOSTNAME,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
    }
    pod = a_pod(name, a_container(limits=SLICE), affinity={"podAntiAffinity": {REQUIRED: [apart]}})
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }


def test_a_pod_whose_node_turned_out_wrong_gets_another_and_lives_on(
    cluster: InstalledCluster,
) -> None:
    """Binpack sends both to one node; only kube-scheduler knows the rule that separates them."""
    create(cluster, a_replica_set("apart"), REPLICA_SETS)

    def pods() -> list[Object]:
        found = cluster.objects(PODS)
        return [p for p in found if p["metadata"].get("labels", {}).get("app") == "apart"]

    def nodes() -> list[str]:
        return sorted(pod["spec"].get("nodeName", "") for pod in pods())

    cluster.until(lambda: nodes() == ["one", "two"], lambda: cluster.objects(PODS), limit=60)
    assert len({pod["metadata"]["uid"] for pod in pods()}) == 2
    assert not {"PodReplaced", "SuccessfulDelete"} & reasons(cluster, "apart")
    for pod in pods():
        allocation = allocation_of(cluster, pod)
        assert allocation is not None
        assert allocation["nodeName"] == pod["spec"]["nodeName"]
    delete(cluster, "apart", REPLICA_SETS)
    cluster.until(lambda: not pods(), pods)


def test_a_scheduler_that_rejects_the_only_node_is_not_asked_thirty_times_a_second(
    cluster: InstalledCluster,
) -> None:
    """The pod's node selector leaves only one node, and a pod that runs there repels this one."""
    first = a_replica_set("met")
    first["spec"]["replicas"] = 1
    create(cluster, first, REPLICA_SETS)
    cluster.until(
        lambda: any(
            pod["metadata"].get("labels", {}).get("app") == "met" and pod["spec"].get("nodeName")
            for pod in cluster.objects(PODS)
        ),
        lambda: cluster.objects(PODS),
    )
    (there,) = (
        pod["spec"]["nodeName"]
        for pod in cluster.objects(PODS)
        if pod["metadata"].get("labels", {}).get("app") == "met"
    )
    pod = a_pod(
        "late",
        a_container(limits=SLICE),
        labels={"app": "met-late"},
        affinity={
            "podAntiAffinity": first["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        },
        nodeSelector={HOSTNAME: there},
    )
    create(cluster, pod)
    late = cluster.wait_for(PODS, "late", lambda _: True)
    cluster.until(lambda: resource_claim_of(cluster, late), lambda: cluster.objects(PODS))
    versions = set()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        claim = resource_claim_of(cluster, late)
        versions.add((claim or {}).get("metadata", {}).get("resourceVersion"))
        time.sleep(0.05)
    assert len(versions) <= 12, "each round takes two writes, and waits longer than the one before"
    cluster.until(
        lambda: "NodeRejected" in reasons(cluster, "late"), lambda: reasons(cluster, "late")
    )
    delete(cluster, "late")
    delete(cluster, "met", REPLICA_SETS)
    gone(cluster, late)


def connected(cluster: InstalledCluster, plane: ControlPlane, account: Any, name: str) -> str:
    path = cluster.folder / f"{name}.kubeconfig"
    kubeconfig_with(plane.kubeconfig, path, cluster.token(account))
    return str(path)


async def refused(api: Api, resource: Resource, obj: Object) -> str:
    with pytest.raises(ApiError) as error:
        await api.create(resource, obj)
    return str(error.value)


def a_claim_spec(**exactly: Any) -> Object:
    request = {"name": "main", "exactly": {"deviceClassName": "vgpu.dev", **exactly}}
    return {"devices": {"requests": [request]}}


@pytest.mark.parametrize("toleration", [{"key": "vgpu.dev/ledger"}, {}])
def test_no_claim_and_no_template_may_tolerate_the_taint(
    cluster: InstalledCluster, toleration: Object
) -> None:
    spec = a_claim_spec(tolerations=[{"operator": "Exists", **toleration}])
    metadata = {"name": "tolerant", "namespace": "default"}
    first = {
        "name": "a",
        "deviceClassName": "vgpu.dev",
        **spec["devices"]["requests"][0]["exactly"],
    }
    several = {"devices": {"requests": [{"name": "main", "firstAvailable": [first]}]}}

    async def tried() -> list[str]:
        return [
            await refused(cluster.api, RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec}),
            await refused(cluster.api, RESOURCE_CLAIMS, {"metadata": metadata, "spec": several}),
            await refused(cluster.api, TEMPLATES, {"metadata": metadata, "spec": {"spec": spec}}),
        ]

    assert all("no claim may tolerate the taint" in each for each in cluster.run(tried()))


def test_nobody_but_the_operator_allocates_our_devices_or_uses_its_names(
    cluster: InstalledCluster,
) -> None:
    """Neither a device of its own choice, nor the share of a pod that runs."""
    pod = a_victim(cluster)
    claim = resource_claim_of(cluster, pod)
    assert claim is not None
    (share,) = claim["status"]["allocation"]["devices"]["results"]
    metadata = {"name": "mine", "namespace": "default"}
    free = {"request": "main", "driver": "vgpu.dev", "pool": "one", "device": "gpu-0"}
    named = {**metadata, "name": f"vgpu-{'0' * 12}"}

    async def forged(result: Object) -> str:
        allocation = {"devices": {"results": [result]}}
        patch = [{"op": "add", "path": "/status", "value": {"allocation": allocation}}]
        with pytest.raises(ApiError) as error:
            await cluster.api.json_patch(
                RESOURCE_CLAIMS, "mine", patch, namespace="default", subresource="status"
            )
        return str(error.value)

    create(cluster, {"metadata": metadata, "spec": a_claim_spec()}, RESOURCE_CLAIMS)
    for result in (free, share):
        said = cluster.run(forged(result))
        assert "only the operator allocates devices of the driver vgpu.dev" in said
    taken = cluster.run(
        refused(cluster.api, RESOURCE_CLAIMS, {"metadata": named, "spec": a_claim_spec()})
    )
    assert "the operator makes the ResourceClaims with names of this form" in taken
    delete(cluster, "mine", RESOURCE_CLAIMS)
    delete(cluster, "victim")
    gone(cluster, pod)


def test_only_a_nodes_agent_publishes_its_devices_and_only_with_the_taint(
    cluster: InstalledCluster, plane: ControlPlane
) -> None:
    pool = {"name": "one", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "vgpu.dev", "nodeName": "one", "pool": pool, "devices": [{"name": "gpu-0"}]}
    message = cluster.run(
        refused(cluster.api, SLICES, {"metadata": {"name": "forged"}, "spec": spec})
    )
    assert "only the agent of a node publishes" in message


@pytest.mark.parametrize("account", [OPERATOR, AGENT])
def test_skipped_node_operations_are_refused_of_everybody(
    cluster: InstalledCluster, plane: ControlPlane, account: Any
) -> None:
    """Kubernetes 1.37 knows the field; an older API server drops or refuses it."""
    path = connected(cluster, plane, account, f"skips-{account[1]}")
    result = {"request": "main", "driver": "vgpu.dev", "pool": "one", "device": "gpu-0"}
    skips = {**result, "skipNodeOperations": ["Prepare"]}
    name = f"skips-{account[1]}"
    value = {"allocation": {"devices": {"results": [skips]}}}

    async def tried() -> Object:
        metadata = {"name": name, "namespace": "default"}
        await cluster.api.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": a_claim_spec()})
        async with Api.connect(path) as api:
            try:
                await api.json_patch(
                    RESOURCE_CLAIMS,
                    name,
                    [{"op": "add", "path": "/status", "value": value}],
                    namespace="default",
                    subresource="status",
                )
            except ApiError:
                await asyncio.sleep(0)
        return await cluster.api.get(RESOURCE_CLAIMS, name, namespace="default")

    found = cluster.run(tried())
    assert "skipNodeOperations" not in str(found.get("status"))
    delete(cluster, name, RESOURCE_CLAIMS)


def test_a_pod_that_was_copied_with_the_claim_of_another_is_refused(
    cluster: InstalledCluster,
) -> None:
    create(cluster, a_pod("original", a_container(limits=SLICE)))
    pod = bound(cluster, "original")
    copied = {
        "metadata": {
            "name": "copied",
            "namespace": "default",
            "annotations": pod["metadata"]["annotations"],
        },
        "spec": {
            key: value
            for key, value in pod["spec"].items()
            if key in ("containers", "resourceClaims")
        },
    }
    message = cluster.run(refused(cluster.api, PODS, copied))
    assert "belongs to another pod: leave out the entry vgpu" in message
    delete(cluster, "original")
    gone(cluster, pod)


def a_thief(name: str, claim: str, **spec: Any) -> Object:
    """Return a pod that asks for nothing, and names the ResourceClaim of another pod."""
    container = a_container()
    container["resources"] = {"claims": [{"name": "gpu"}]}
    return a_pod(
        name, container, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}], **spec
    )


def said_of(cluster: InstalledCluster, name: str, words: str) -> bool:
    events = cluster.objects(EVENTS)
    of_it = [each for each in events if each["involvedObject"]["name"].startswith(name)]
    return any(words in each.get("message", "") for each in of_it)


def is_told(cluster: InstalledCluster, name: str, words: str) -> None:
    """Wait for an event of an object whose message contains this text."""
    cluster.until(lambda: said_of(cluster, name, words), lambda: cluster.objects(EVENTS))


def test_no_pod_may_name_the_claim_of_another_by_whatever_way_it_is_made(
    cluster: InstalledCluster,
) -> None:
    pod = a_victim(cluster)
    name = pod["spec"]["resourceClaims"][0]["resourceClaimName"]
    asking = a_thief("asking", name)
    asking["spec"]["containers"][0]["resources"]["limits"] = SLICE
    for thief in (a_thief("plain", name), asking):
        message = cluster.run(refused(cluster.api, PODS, thief))
        assert f'spec.resourceClaims[0].resourceClaimName: Invalid value: "{name}"' in message
        assert "leave out the entry gpu" in message
    labels = {"app": "thieves"}
    thieves = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "thieves", "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": a_thief("t", name)["spec"]},
        },
    }
    create(cluster, thieves, REPLICA_SETS)
    is_told(cluster, "thieves", f'Invalid value: "{name}"')
    delete(cluster, "thieves", REPLICA_SETS)
    delete(cluster, "victim")
    gone(cluster, pod)


def passes(cluster: InstalledCluster, pod: Object) -> bool:
    """Return True if a pod may be created; it is deleted again."""
    try:
        cluster.run(cluster.api.create(PODS, pod))
    except ApiError:
        return False
    delete(cluster, pod["metadata"]["name"])
    return True


@contextlib.contextmanager
def unguarded(cluster: InstalledCluster, policy: str = "") -> Iterator[None]:
    """Let pods pass by the webhooks, and by a policy, as if they had been there before."""
    namespace, label = "default", "hami.io/webhook"

    def labelled(value: str | None) -> None:
        change = {"metadata": {"labels": {label: value}}}
        cluster.run(cluster.api.merge_patch(NAMESPACES, namespace, change))

    labelled("ignore")
    binding = cluster.run(cluster.api.get(BINDINGS, policy)) if policy else {}
    if binding:
        cluster.run(cluster.api.delete(BINDINGS, policy))
    try:
        yield
    finally:
        labelled(None)
        if binding:
            metadata = {key: binding["metadata"][key] for key in ("name", "labels")}
            create(cluster, {**binding, "metadata": metadata}, BINDINGS)
        probe = a_thief("probe", f"vgpu-{'f' * 12}")
        cluster.until(lambda: not passes(cluster, probe), lambda: cluster.objects(PODS))


def test_the_policy_refuses_such_a_pod_where_no_webhook_answers(cluster: InstalledCluster) -> None:
    name = f"vgpu-{'0' * 12}"
    thief = a_thief("thief", name)

    def said() -> str:
        return cluster.run(refused(cluster.api, PODS, thief))

    with unguarded(cluster):
        cluster.until(lambda: "vgpu-claim-users" in said(), said)
        message = said()
    assert f'spec.resourceClaims[gpu].resourceClaimName: Invalid value: "{name}"' in message
    assert "leave the entry out" in message


def test_two_pods_on_one_claim_never_both_reserve_it(cluster: InstalledCluster) -> None:
    """kube-scheduler reserves it for one pod, and Kubernetes itself for a pod bound by the test."""
    pod = a_victim(cluster)
    (entry,) = pod["spec"]["resourceClaims"]
    name = entry["resourceClaimName"]
    with unguarded(cluster, "vgpu-claim-users"):
        probe = a_thief("probe", name)
        cluster.until(lambda: passes(cluster, probe), lambda: cluster.objects(PODS))
        create(cluster, a_thief("scheduled", name))
        create(cluster, a_thief("by-hand", name, nodeName="two"))
    is_told(cluster, "scheduled", "status.reservedFor: Forbidden: ResourceClaim")
    for thief in ("scheduled", "by-hand"):
        is_told(cluster, thief, "and this is not that of this pod")
    claim = resource_claim_of(cluster, pod)
    assert claim is not None
    assert [each["uid"] for each in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    found = cluster.run(cluster.api.get(PODS, "scheduled", namespace="default"))
    assert not found["spec"].get("nodeName")
    for each in ("scheduled", "by-hand", "victim"):
        delete(cluster, each)
    gone(cluster, pod)


def test_of_a_manifest_copied_before_its_claim_exists_one_pod_runs(
    cluster: InstalledCluster,
) -> None:
    """Admission cannot tell the copy from a second review, so the reservation decides."""
    whole = {"nvidia.com/gpu": 1}
    for name in ("full-one", "full-two"):
        create(cluster, a_pod(name, a_container(limits=whole)))
    full = [bound(cluster, name) for name in ("full-one", "full-two")]
    create(cluster, a_pod("victim", a_container(limits=SLICE)))
    pod = cluster.wait_for(PODS, "victim", lambda _: True)
    copy = a_pod("copy", *pod["spec"]["containers"])
    copy["metadata"] |= {key: pod["metadata"][key] for key in ("annotations", "labels")}
    copy["spec"]["resourceClaims"] = pod["spec"]["resourceClaims"]
    create(cluster, copy)
    for each in full:
        delete(cluster, each["metadata"]["name"])
        gone(cluster, each)

    def nodes() -> list[str]:
        names = ("victim", "copy")
        found = [each for each in cluster.objects(PODS) if each["metadata"]["name"] in names]
        return [each["spec"].get("nodeName", "") for each in found]

    cluster.until(lambda: any(nodes()), nodes)
    cluster.until(
        lambda: "ClaimNotOwned" in reasons(cluster, "copy") | reasons(cluster, "victim"),
        lambda: cluster.objects(EVENTS),
    )
    claim = resource_claim_of(cluster, pod)
    assert claim is not None
    assert len(claim["status"]["reservedFor"]) == 1
    assert sum(map(bool, nodes())) == 1
    for name in ("copy", "victim"):
        delete(cluster, name)
    gone(cluster, pod)


def test_nobody_reserves_a_claim_for_another_pod_or_says_that_it_is_for_another(
    cluster: InstalledCluster,
) -> None:
    pod = a_victim(cluster)
    name = pod["spec"]["resourceClaims"][0]["resourceClaimName"]
    other = {"resource": "pods", "name": "other", "uid": "00000000-0000-0000-0000-00000000000f"}
    joins = [{"op": "add", "path": "/status/reservedFor/-", "value": other}]
    marks = [{"op": "add", "path": "/metadata/annotations/vgpu.dev~1pod-uid", "value": "other"}]

    async def tried(patch: list[Object], subresource: str) -> str:
        with pytest.raises(ApiError) as error:
            await cluster.api.json_patch(
                RESOURCE_CLAIMS, name, patch, namespace="default", subresource=subresource or None
            )
        return str(error.value)

    assert "serves the pod with UID" in cluster.run(tried(joins, "status"))
    assert "only the operator writes vgpu.dev/pod-uid" in cluster.run(tried(marks, ""))
    delete(cluster, "victim")
    gone(cluster, pod)


@pytest.mark.parametrize("field", ["spec", "allocation"])
def test_a_claim_is_not_edited_after_it_was_allocated(
    cluster: InstalledCluster, field: str
) -> None:
    pod = a_victim(cluster)
    claim = resource_claim_of(cluster, pod)
    assert claim is not None
    edits = {
        "spec": {"op": "replace", "path": "/spec/devices/requests/0/exactly/count", "value": 2},
        "allocation": {
            "op": "replace",
            "path": "/status/allocation/devices/results/0/shareID",
            "value": "00000000-0000-0000-0000-000000000009",
        },
    }
    subresource = "" if field == "spec" else "status"

    async def tried() -> None:
        with pytest.raises(ApiError):
            await cluster.api.json_patch(
                RESOURCE_CLAIMS,
                claim["metadata"]["name"],
                [edits[field]],
                namespace="default",
                subresource=subresource or None,
            )

    cluster.run(tried())
    after = resource_claim_of(cluster, pod)
    assert after is not None
    assert (after["spec"], after["status"]) == (claim["spec"], claim["status"])
    delete(cluster, "victim")
    gone(cluster, pod)


def test_a_pod_that_asks_by_a_template_gets_what_the_template_says(
    cluster: InstalledCluster,
) -> None:
    requests = {"capacity": {"requests": {"memory": "2Gi", "cores": 30}}}
    template = {
        "metadata": {"name": "small", "namespace": "default"},
        "spec": {"spec": a_claim_spec(**requests)},
    }
    create(cluster, template, TEMPLATES)
    container = a_container()
    container["resources"] = {"claims": [{"name": "gpu"}]}
    named = {"name": "gpu", "resourceClaimTemplateName": "small"}
    create(cluster, a_pod("by-template", container, resourceClaims=[named]))
    pod = bound(cluster, "by-template")
    allocation = allocation_of(cluster, pod)
    assert allocation is not None
    (device,) = allocation["devices"]
    assert (device["memory"], device["cores"]) == ("2Gi", 30)
    delete(cluster, "by-template")
    gone(cluster, pod)
    delete(cluster, "small", TEMPLATES)


def a_pod_naming(name: str, claim: str) -> Object:
    container = a_container()
    container["resources"] = {"claims": [{"name": "gpu"}]}
    return a_pod(name, container, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}])


def test_a_claim_of_a_users_own_making_serves_one_pod_after_the_other(
    cluster: InstalledCluster,
) -> None:
    metadata = {"name": "made-by-hand", "namespace": "default"}
    cel = 'device.attributes["vgpu.dev"].type == "hami-gpu"'
    wanted = {
        "capacity": {"requests": {"vgpu.dev/memory": "2Gi", "cores": 30}},
        "selectors": [{"cel": {"expression": cel}}],
    }
    create(cluster, {"metadata": metadata, "spec": a_claim_spec(**wanted)}, RESOURCE_CLAIMS)
    create(cluster, a_pod_naming("one", "made-by-hand"))
    first = bound(cluster, "one")
    create(cluster, a_pod_naming("other", "made-by-hand"))
    is_told(cluster, "other", "ResourceClaim made-by-hand serves one, and one pod at a time")
    (device,) = (allocation_of(cluster, first) or {})["devices"]
    assert (device["memory"], device["cores"]) == ("2Gi", 30)
    claim = resource_claim_of(cluster, first)
    assert claim is not None
    assert [each["uid"] for each in claim["status"]["reservedFor"]] == [first["metadata"]["uid"]]
    delete(cluster, "one")
    second = bound(cluster, "other")
    assert allocation_of(cluster, first) is None
    assert allocation_of(cluster, second) is not None
    delete(cluster, "other")
    cluster.until(
        lambda: "finalizers" not in (resource_claim_of(cluster, second) or {})["metadata"],
        lambda: resource_claim_of(cluster, second),
    )
    delete(cluster, "made-by-hand", RESOURCE_CLAIMS)


@pytest.mark.parametrize(
    ("exactly", "words"),
    [
        ({"allocationMode": "All"}, 'exactly.allocationMode: Unsupported value: "All"'),
        ({"adminAccess": True}, "exactly.adminAccess: Forbidden"),
    ],
)
def test_a_claim_that_cannot_be_honoured_is_told_so_and_its_pod_is_refused(
    cluster: InstalledCluster, exactly: Object, words: str
) -> None:
    space = "admin"
    labels = {"resource.kubernetes.io/admin-access": "true"}
    namespace = {"metadata": {"name": space, "labels": labels}}
    with contextlib.suppress(ApiError):
        create(cluster, namespace, NAMESPACES)
    metadata = {"name": "wrong", "namespace": space}
    create(cluster, {"metadata": metadata, "spec": a_claim_spec(**exactly)}, RESOURCE_CLAIMS)

    def messages() -> list[str]:
        return [each["message"] for each in cluster.objects(EVENTS, space)]

    cluster.until(lambda: any(words in each for each in messages()), messages)
    pod = a_pod_naming("wrong", "wrong")
    pod["metadata"]["namespace"] = space
    assert words in cluster.run(refused(cluster.api, PODS, pod))
    claim = cluster.run(cluster.api.get(RESOURCE_CLAIMS, "wrong", namespace=space))
    assert "allocation" not in claim.get("status", {})
    cluster.run(cluster.api.delete(RESOURCE_CLAIMS, "wrong", namespace=space))
