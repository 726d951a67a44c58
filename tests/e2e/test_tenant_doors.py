"""A tenant, or an attacker who controls a node's agent, tries each way around the rules in vain.

They run on a real control plane with everything that manifests/ installs: roles, policies,
webhooks, operator, scheduler and agents. The kubelets are the stand-in's, and the devices are
simulated. The attackers use the tokens of their own accounts: that of a tenant, who has the role
`edit` in one namespace, and that of the agent of node ONE. docs/security.md has a row for each of
these ways ("doors").

    VGPU_TEST_CLUSTER=real .venv/bin/pytest tests/e2e/test_tenant_doors.py -n0
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from vgpu_api.resources import (
    EVENTS,
    GPU_DEVICES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    SECRETS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.errors import AlreadyExists, ApiError, Forbidden, Invalid
from vgpu_client.listen import listen
from vgpu_client.metrics_server import MetricsServer
from vgpu_client.own_certificate import own_certificate
from vgpu_client.scrapers import Scrapers
from vgpu_client.transport import Object
from vgpu_local.accounts import AGENT, SERVICE_ACCOUNTS, client_of, token
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import t4_node
from vgpu_local.steps import a_claim, a_container, a_pod

ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True)
CLUSTER_ROLE_BINDINGS = Resource(
    ROLE_BINDINGS.group, "v1", "clusterrolebindings", "ClusterRoleBinding", False
)
EVICTIONS = "eviction"
ONE, TWO = "one", "two"
TENANT = "tenant"
LIMIT_S = 60.0

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True, slots=True)
class Doors:
    """The cluster, and a client for each account that tries.

    Attributes:
        cluster: The cluster with everything installed.
        admin: An administrator.
        tenant: An account that may edit the namespace TENANT.
        agent: The agent of node ONE.
    """

    cluster: InstalledCluster
    admin: Api
    tenant: Api
    agent: Api


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(Options(controllers=True)) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[InstalledCluster]:
    nodes = [t4_node(ONE, 4), t4_node(TWO, 1)]
    with InstalledCluster(nodes, operators=1, webhooks=1, plane=plane) as running:
        yield running


@pytest.fixture(scope="module")
async def doors(
    plane: ControlPlane, cluster: InstalledCluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Doors]:
    folder = tmp_path_factory.mktemp("accounts")
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Api.connect(str(plane.kubeconfig)))
        await admin.create(NAMESPACES, {"metadata": {"name": TENANT}})
        await admin.create(SERVICE_ACCOUNTS, {"metadata": {"namespace": TENANT, "name": "tenant"}})
        role = {"apiGroup": ROLE_BINDINGS.group, "kind": "ClusterRole", "name": "edit"}
        subject = {"kind": "ServiceAccount", "namespace": TENANT, "name": "tenant"}
        await admin.create(
            ROLE_BINDINGS,
            {
                "metadata": {"namespace": TENANT, "name": "tenant"},
                "roleRef": role,
                "subjects": [subject],
            },
        )

        async def connect(account: tuple[str, str], node: str | None = None) -> Api:
            client = client_of(admin, plane.kubeconfig, folder, account, node=node)
            return await stack.enter_async_context(client)

        tenant = await connect((TENANT, "tenant"))
        yield Doors(cluster, admin, tenant, await connect(AGENT, ONE))


@pytest.fixture(autouse=True)
async def emptied(doors: Doors) -> AsyncIterator[None]:
    """Remove all pods, claims and quotas from the tenant's namespace after each test."""
    yield
    for resource in (PODS, VGPU_CLAIMS, RESOURCE_QUOTAS):
        for found in (await doors.admin.list(resource, namespace=TENANT)).items:
            with contextlib.suppress(ApiError):
                name = found["metadata"]["name"]
                await doors.admin.delete(resource, name, namespace=TENANT, grace_s=0)
    await until(doors, VGPU_CLAIMS, lambda claims: not claims)


def of_tenant(obj: Object) -> Object:
    """Return the object, moved into the tenant's namespace."""
    return {**obj, "metadata": {**obj["metadata"], "namespace": TENANT}}


async def until(
    doors: Doors,
    resource: Resource,
    holds: Callable[[list[Object]], Any],
    *,
    namespace: str | None = TENANT,
) -> Any:
    """Wait until a condition on all objects of a kind holds, and return what `holds` returns."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        space = namespace if resource.namespaced else None
        objects = list((await doors.admin.list(resource, namespace=space)).items)
        found = holds(objects)
        if found:
            return found
        shown = [(each["metadata"]["name"], each.get("status")) for each in objects]
        assert time.monotonic() < deadline, json.dumps(shown)[-4000:]
        await asyncio.sleep(0.1)


def said(objects: list[Object], type_: str, name: str = "") -> dict[str, Any]:
    """Return a condition of the only object, or of the named one; empty if it is missing."""
    for each in objects:
        if name in ("", each["metadata"]["name"]):
            for condition in each.get("status", {}).get("conditions", ()):
                if condition["type"] == type_:
                    return dict(condition)
    return {}


def a_gpu_pod(name: str, **fields: Any) -> Object:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    return of_tenant(a_pod(name, a_container(limits=limits, **fields)))


# Door 7: devices without a request.


async def test_door_7_no_container_beside_a_gpu_container_may_ask_for_every_device(
    doors: Doors,
) -> None:
    every = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod = a_gpu_pod("seven")
    pod["spec"]["containers"].append(a_container("beside", env=every))
    with pytest.raises(ApiError, match="NVIDIA_VISIBLE_DEVICES"):
        await doors.tenant.create(PODS, pod)


@pytest.mark.parametrize("source", ["valueFrom", "envFrom", "image"])
async def test_door_7_a_container_beside_sees_no_device_wherever_its_variable_comes_from(
    doors: Doors, source: str
) -> None:
    """The container's own value takes precedence over `envFrom` and over the image's."""
    where: dict[str, Object] = {
        "valueFrom": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": EVERY_BY_FIELD}]},
        "envFrom": {"envFrom": [{"configMapRef": {"name": "of-the-tenant"}}]},
        "image": {"image": "nvidia/cuda:13.0.0-base-ubuntu24.04"},
    }
    pod = a_gpu_pod("seven")
    pod["metadata"]["annotations"] = {"every": "all"}
    pod["spec"]["containers"].insert(0, {**a_container("beside"), **where[source]})
    made = await doors.tenant.create(PODS, pod)
    beside = made["spec"]["containers"][0]
    named = [each for each in beside["env"] if each["name"] == "NVIDIA_VISIBLE_DEVICES"]
    assert named == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


@pytest.mark.parametrize("value", [None, "all"])
async def test_door_7_a_container_added_for_debugging_sees_no_device(
    doors: Doors, value: str | None
) -> None:
    """Its image's variable would give it all devices if NVIDIA's runtime were the default."""
    await doors.tenant.create(PODS, a_gpu_pod("seven"))
    debugger: Object = {"name": "debugger", "image": "nvidia/cuda:13.0.0-base-ubuntu24.04"}
    if value is not None:
        debugger["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
    change = {"spec": {"ephemeralContainers": [debugger]}}

    async def debug() -> Object:
        return await doors.admin.merge_patch(
            PODS, "seven", change, namespace=TENANT, subresource="ephemeralcontainers"
        )

    if value is not None:
        with pytest.raises(ApiError, match=r"ephemeralContainers\[0\].*: Forbidden: leave it out"):
            await debug()
        return
    (added,) = (await debug())["spec"]["ephemeralContainers"]
    assert added["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    label = {"metadata": {"labels": {"debugged": "yes"}}}
    await doors.tenant.merge_patch(PODS, "seven", label, namespace=TENANT)


EVERY_BY_FIELD = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['every']"}}

STRANGER = """
    import ctypes, time
    driver = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8000 << 20)) == 0
    time.sleep(600)
"""


async def test_door_7_a_process_that_reached_a_device_without_a_claim_is_reported(
    doors: Doors,
) -> None:
    """Some container runtimes expose devices to every container that sets a variable."""
    command = [sys.executable, "-c", textwrap.dedent(STRANGER)]
    stranger = a_pod("stranger", a_container(command=command), nodeName=ONE)
    await doors.tenant.create(PODS, of_tenant(stranger))

    def reported(devices: list[Object]) -> bool:
        names = [device["metadata"]["name"] for device in devices]
        found = [said(devices, "UnclaimedProcesses", name) for name in names]
        return any(each.get("status") == "True" for each in found)

    await until(doors, GPU_DEVICES, reported)


# Door 8: more than the quota allows, and devices without a pod.


async def test_door_8_a_claim_for_four_devices_gets_none_under_a_quota_of_one(
    doors: Doors,
) -> None:
    await doors.admin.create(
        RESOURCE_QUOTAS,
        {
            "metadata": {"namespace": TENANT, "name": "gpus"},
            "spec": {"hard": {"requests.nvidia.com/gpu": 1}},
        },
    )
    await until(doors, RESOURCE_QUOTAS, lambda quotas: "hard" in quotas[0].get("status", {}))
    await doors.tenant.create(VGPU_CLAIMS, of_tenant(a_claim("four", {"count": 4})))
    annotations = {"vgpu.dev/claim": "four"}
    await doors.tenant.create(
        PODS, of_tenant(a_pod("eight", a_container(), annotations=annotations))
    )
    condition = await until(
        doors,
        VGPU_CLAIMS,
        lambda claims: (
            found if (found := said(claims, "Allocated")).get("reason") != "WaitingForPod" else {}
        ),
    )
    assert condition["reason"] == "ResourceQuotaNotFit"
    assert condition["message"].endswith(
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, "
        "used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=1"
    )


async def test_door_8_a_tenant_cannot_have_devices_without_a_pod(doors: Doors) -> None:
    claim = of_tenant(a_claim("now", {"count": 4}, bindingMode="Immediate"))
    with pytest.raises(Forbidden, match="may not allocate devices immediately"):
        await doors.tenant.create(VGPU_CLAIMS, claim)
    await doors.tenant.create(VGPU_CLAIMS, of_tenant(a_claim("later", {"count": 4})))
    change = {"spec": {"bindingMode": "Immediate"}}
    with pytest.raises(Forbidden, match="may not allocate devices immediately"):
        await doors.tenant.merge_patch(VGPU_CLAIMS, "later", change, namespace=TENANT)


# Door 9: past admission with a label, and then without it.


async def test_door_9_a_pod_that_admission_did_not_read_never_gets_a_device(doors: Doors) -> None:
    pod = a_gpu_pod("nine", securityContext={"privileged": True})
    with pytest.raises(ApiError, match="privileged"):
        await doors.tenant.create(PODS, pod)
    pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    pod["spec"]["schedulerName"] = "vgpu-scheduler"
    pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    made = await doors.tenant.create(PODS, pod)
    for label in (None, "no"):
        change = {"metadata": {"labels": {"hami.io/webhook": label}}}
        with pytest.raises(Invalid, match=r"labels\[hami\.io/webhook\]: Forbidden"):
            await doors.tenant.merge_patch(PODS, "nine", change, namespace=TENANT)
    own = {"metadata": {"name": f"nine-{made['metadata']['uid'][:8]}"}}
    forged = of_tenant(a_claim("forged", {"memory": "1Gi"}))
    forged["metadata"] |= own["metadata"]
    await doors.tenant.create(VGPU_CLAIMS, forged)  # the claim's name makes it the pod's own
    await doors.tenant.create(PODS, a_gpu_pod("reads-on"))
    await until(doors, PODS, lambda pods: runs(pods, "reads-on"))
    claims = (await doors.admin.list(VGPU_CLAIMS, namespace=TENANT)).items
    given = [c["metadata"]["name"] for c in claims if c["status"].get("allocation")]
    assert [name for name in given if name.startswith("nine-")] == []
    assert not runs(list((await doors.admin.list(PODS, namespace=TENANT)).items), "nine")


async def test_door_9_a_namespace_that_opts_out_gets_no_device_and_no_way_past_limits(
    doors: Doors,
) -> None:
    """HAMi's users label namespaces like this, and none of our rules binds the pods there."""
    labels = {"hami.io/webhook": "ignore"}
    await doors.admin.create(NAMESPACES, {"metadata": {"name": "left-alone", "labels": labels}})
    disabled = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    pod = a_gpu_pod("without-limits", env=disabled)
    pod["metadata"]["namespace"] = "left-alone"
    pod["spec"]["schedulerName"] = "vgpu-scheduler"
    bound = {**pod, "metadata": {**pod["metadata"], "name": "bound"}}
    bound["spec"] = {**pod["spec"], "nodeName": ONE}
    for each in (pod, bound):
        await doors.admin.create(PODS, each)

    def refused(events: list[Object]) -> bool:
        named = {e["involvedObject"]["name"] for e in events if e["reason"] == "NotAdmitted"}
        return named >= {"without-limits", "bound"}

    await until(doors, EVENTS, refused, namespace="left-alone")
    await doors.tenant.create(PODS, a_gpu_pod("reads-on"))
    await until(doors, PODS, lambda pods: runs(pods, "reads-on"))
    pods = list((await doors.admin.list(PODS, namespace="left-alone")).items)
    assert not any(runs(pods, name) for name in ("without-limits", "bound"))
    assert (await doors.admin.list(VGPU_CLAIMS, namespace="left-alone")).items == []


def runs(pods: list[Object], name: str) -> bool:
    return any(
        pod["metadata"]["name"] == name and pod["status"].get("phase") == "Running" for pod in pods
    )


# Door 10: overriding the administrator.


async def test_door_10_a_tenant_does_not_switch_off_an_enforcement_that_is_forced(
    doors: Doors,
) -> None:
    async with changed(doors, TWO, {"corePolicy": "Force"}):
        disable = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}]
        pod = a_gpu_pod("ten", env=disable)
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] = 10
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": TWO}
        await doors.tenant.create(PODS, pod)
        await until(doors, PODS, lambda pods: runs(pods, "ten"))
        (spec,) = (doors.cluster.folder / TWO).glob("cdi/*.json")
        assert "GPU_CORE_UTILIZATION_POLICY=force" in spec.read_text()


async def test_door_10_who_gets_a_whole_device_is_charged_a_whole_device(doors: Doors) -> None:
    async with changed(doors, TWO, {"mode": "Exclusive"}):
        request = {"mode": "Exclusive", "memory": "1Gi", "cores": 1}
        await doors.tenant.create(VGPU_CLAIMS, of_tenant(a_claim("alone", request)))
        annotations = {"vgpu.dev/claim": "alone"}
        await doors.tenant.create(
            PODS, of_tenant(a_pod("ten", a_container(), annotations=annotations))
        )
        await until(doors, PODS, lambda pods: runs(pods, "ten"))
        (claim,) = (await doors.admin.list(VGPU_CLAIMS, namespace=TENANT)).items
        (device,) = claim["status"]["allocation"]["devices"]
        assert (device["memory"], device["cores"]) == ("16Gi", 100)


@contextlib.asynccontextmanager
async def changed(doors: Doors, node: str, spec: Object) -> AsyncIterator[None]:
    """Set the fields of a device's spec that belong to the administrator.

    Restore the defaults afterwards.
    """
    (device,) = await devices_of(doors, node)
    name, before = device["metadata"]["name"], device["spec"]
    await doors.admin.merge_patch(GPU_DEVICES, name, {"spec": spec})
    yield
    after = {field: before.get(field) for field in spec}
    await doors.admin.merge_patch(GPU_DEVICES, name, {"spec": after})


async def devices_of(doors: Doors, node: str) -> list[Object]:
    devices = (await doors.admin.list(GPU_DEVICES)).items
    return [device for device in devices if device["spec"]["nodeName"] == node]


# Door 11: an attacker who controls an agent.


async def test_door_11_an_agent_makes_no_device_of_another_node(doors: Doors) -> None:
    for name, node in (("gpu-made-up", TWO), ("gpu-made-up", "")):
        with pytest.raises(ApiError):
            await make_device(doors.agent, name, node)
    (theirs,) = await devices_of(doors, TWO)
    with pytest.raises(AlreadyExists):
        await make_device(doors.agent, theirs["metadata"]["name"], ONE)
    with pytest.raises(Invalid, match="writes devices of that node only"):
        await describe(doors.agent, theirs["metadata"]["name"], "GPU-mine")


async def test_door_11_an_agent_that_repeats_foreign_uuids_puts_no_device_out_of_service(
    doors: Doors,
) -> None:
    (theirs,) = await devices_of(doors, TWO)
    name, uuid = theirs["metadata"]["name"], theirs["status"]["uuid"]
    mine = (await devices_of(doors, ONE))[0]["metadata"]["name"]
    with pytest.raises(Invalid, match="is named by another UUID"):
        await describe(doors.agent, mine, uuid)
    with pytest.raises(Invalid, match="makes devices named by a UUID"):
        await make_device(doors.agent, f"{name}.{TWO}", ONE)
    repeated = f"{name}.{ONE}"
    await make_device(doors.agent, repeated, ONE)
    await describe(doors.agent, repeated, uuid)

    def is_seen(devices: list[Object]) -> bool:
        return bool(said(devices, "DuplicateUUID", repeated))

    await until(doors, GPU_DEVICES, is_seen)
    devices = list((await doors.admin.list(GPU_DEVICES)).items)
    assert not said(devices, "DuplicateUUID", name)
    pod = a_gpu_pod("eleven")
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": TWO}
    await doors.tenant.create(PODS, pod)
    await until(doors, PODS, lambda pods: runs(pods, "eleven"))
    await doors.admin.delete(GPU_DEVICES, repeated)


async def test_door_11_an_agent_neither_evicts_nor_deletes_nor_rewrites_pods(doors: Doors) -> None:
    await doors.tenant.create(PODS, a_gpu_pod("victim"))
    await until(doors, PODS, lambda pods: runs(pods, "victim"))
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": TENANT, "name": "victim"},
    }
    with pytest.raises(Forbidden):
        await doors.agent.create(PODS, eviction, subresource=EVICTIONS)
    with pytest.raises(Forbidden):
        await doors.agent.delete(PODS, "victim", namespace=TENANT)
    label = {"metadata": {"labels": {"mine": "yes"}}}
    with pytest.raises(ApiError, match=r"only the annotation vgpu\.dev/poke|of that node only"):
        await doors.agent.merge_patch(PODS, "victim", label, namespace=TENANT)


async def test_door_11_an_agent_reads_the_pods_of_its_own_node_and_no_others(doors: Doors) -> None:
    for name, node in (("mine", ONE), ("theirs", TWO)):
        pod = a_gpu_pod(name)
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        await doors.tenant.create(PODS, pod)
    await until(doors, PODS, lambda pods: runs(pods, "mine") and runs(pods, "theirs"))
    as_node = doors.agent.acting_as(f"system:node:{ONE}")
    mine = (await as_node.list(PODS, field_selector=f"spec.nodeName={ONE}")).items
    assert "mine" in {pod["metadata"]["name"] for pod in mine}
    assert {pod["spec"]["nodeName"] for pod in mine} == {ONE}
    for selector in (None, f"spec.nodeName={TWO}", f"spec.nodeName!={ONE}", "spec.nodeName="):
        for reader in (doors.agent, as_node):
            with pytest.raises(Forbidden):
                await reader.list(PODS, field_selector=selector)
    as_another = doors.agent.acting_as(f"system:node:{TWO}")
    with pytest.raises(Forbidden):
        await as_another.list(PODS, field_selector=f"spec.nodeName={TWO}")


async def test_door_11_acting_as_its_node_gives_an_agent_no_other_right_of_a_kubelet(
    doors: Doors,
) -> None:
    await doors.tenant.create(PODS, a_gpu_pod("victim"))
    await until(doors, PODS, lambda pods: runs(pods, "victim"))
    as_node = doors.agent.acting_as(f"system:node:{ONE}")
    status = {"status": {"phase": "Failed"}}
    for refused in (
        as_node.get(NODES, ONE),
        as_node.list(SECRETS, namespace=TENANT),
        as_node.get(PODS, "victim", namespace=TENANT),
        as_node.delete(PODS, "victim", namespace=TENANT),
        as_node.merge_patch(PODS, "victim", status, namespace=TENANT, subresource="status"),
    ):
        with pytest.raises(Forbidden):
            await refused


async def test_door_11_an_agent_makes_no_claims_and_allocates_none(doors: Doors) -> None:
    await doors.tenant.create(VGPU_CLAIMS, of_tenant(a_claim("theirs", {"memory": "1Gi"})))
    with pytest.raises(Forbidden):
        await doors.agent.create(VGPU_CLAIMS, of_tenant(a_claim("mine", {"memory": "1Gi"})))
    forged = {"status": {"allocation": {"nodeName": ONE}}}
    for attacker in (doors.agent, doors.tenant):
        with pytest.raises(ApiError):
            await attacker.merge_patch(
                VGPU_CLAIMS, "theirs", forged, namespace=TENANT, subresource="status"
            )


async def make_device(api: Api, name: str, node: str) -> Object:
    return await api.create(
        GPU_DEVICES,
        {
            "apiVersion": GPU_DEVICES.api_version,
            "kind": GPU_DEVICES.kind,
            "metadata": {"name": name},
            "spec": {"nodeName": node},
        },
    )


async def describe(api: Api, name: str, uuid: str) -> Object:
    return await api.merge_patch(
        GPU_DEVICES, name, {"status": {"uuid": uuid}}, subresource="status"
    )


# Door 12: giant objects.


async def test_door_12_a_giant_claim_is_refused_by_its_size_and_by_its_lists(doors: Doors) -> None:
    pattern = "x" * 128
    full = {"selector": {"uuids": [pattern] * 64, "excludeUUIDs": [pattern] * 64}}
    giant = of_tenant(a_claim("giant", *({"name": f"c{n}", **full} for n in range(16))))
    assert len(json.dumps(giant)) > 250_000
    with pytest.raises(ApiError, match="Too long"):
        await doors.tenant.create(VGPU_CLAIMS, giant)
    many = of_tenant(a_claim("many", *({"name": f"c{n}"} for n in range(17))))
    with pytest.raises(Invalid, match="must have at most 16 items"):
        await doors.tenant.create(VGPU_CLAIMS, many)
    noted = of_tenant(a_claim("noted", {"memory": "1Gi"}))
    noted["metadata"]["annotations"] = {"example.dev/note": "x" * 200_000}
    with pytest.raises(ApiError, match="Too long"):
        await doors.tenant.create(VGPU_CLAIMS, noted)
    assert not (await doors.admin.list(VGPU_CLAIMS, namespace=TENANT)).items


async def test_door_12_metrics_are_not_shown_to_a_tenant(doors: Doors) -> None:
    """Metrics name the namespaces and claims of others.

    They are served here as an agent serves them.
    """
    registry = CollectorRegistry()
    Gauge("vgpu_claim_of_another", "Of another tenant.", registry=registry).set(1)
    listening = listen("127.0.0.1", 0)
    url = f"https://127.0.0.1:{listening.getsockname()[1]}/metrics"
    certificate = own_certificate("vgpu-nodeagent.one")
    server = MetricsServer(registry, listening, scrapers=Scrapers(doors.agent), tls=certificate)
    tokens = {
        None: 401,
        "forged": 401,
        await token(doors.admin, (TENANT, "tenant")): 403,
        await token(doors.admin, AGENT, node=TWO): 403,
    }
    async with server, aiohttp.ClientSession() as session:
        for bearer, status in tokens.items():
            headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
            async with session.get(url, headers=headers, ssl=False) as answer:
                assert answer.status == status
                assert "vgpu_claim_of_another" not in await answer.text()
        await doors.admin.create(CLUSTER_ROLE_BINDINGS, SCRAPER)
        bearer = await token(doors.admin, (TENANT, "default"))
        async with session.get(
            url, headers={"Authorization": f"Bearer {bearer}"}, ssl=False
        ) as answer:
            assert answer.status == 200
            assert "vgpu_claim_of_another 1.0" in await answer.text()


SCRAPER = {
    "metadata": {"name": "scraper-of-doors"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "vgpu-metrics-reader",
    },
    "subjects": [{"kind": "ServiceAccount", "namespace": TENANT, "name": "default"}],
}


async def test_door_12_a_flood_of_giant_claims_leaves_nothing_and_others_start(
    doors: Doors,
) -> None:
    """A thousand giants come, twenty at a time: each is refused, and a pod beside them starts."""
    giant = of_tenant(a_claim("giant", {"memory": "1Gi"}))
    giant["metadata"]["annotations"] = {"example.dev/note": "x" * 200_000}

    async def knock() -> None:
        for _ in range(50):
            with pytest.raises(ApiError, match="Too long"):
                await doors.tenant.create(VGPU_CLAIMS, giant)

    async with asyncio.TaskGroup() as tenants:
        for _ in range(20):
            tenants.create_task(knock())
        await doors.tenant.create(PODS, a_gpu_pod("twelve"))
        await until(doors, PODS, lambda pods: runs(pods, "twelve"))
    claims = (await doors.admin.list(VGPU_CLAIMS, namespace=TENANT)).items
    assert [c["metadata"]["name"] for c in claims if c["metadata"]["name"] == "giant"] == []
