"""The admission policies of manifests/ restrict writers where roles cannot.

The tests run on the real API server, with every role and policy installed and without our programs:
they use the tokens of the programs' accounts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vgpu_api.names import AGENT_NAMESPACE, FIELD_MANAGER_AGENT, FINALIZER_IN_USE
from vgpu_api.resources import (
    EVENTS,
    GPU_DEVICES,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
    Resource,
)
from vgpu_client.api import Api
from vgpu_client.errors import ApiError, Forbidden, Invalid
from vgpu_client.transport import Object
from vgpu_local.accounts import AGENT, OPERATOR, SERVICE_ACCOUNTS, client_of
from vgpu_local.control_plane import ControlPlane
from vgpu_local.installation import install, policies_in_force
from vgpu_local.steps import a_claim, a_container, a_pod

ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True)
FIRST, SECOND = (f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2))
HERE, ELSEWHERE = "node-here", "node-elsewhere"


@dataclass(frozen=True, slots=True)
class Callers:
    """A client for each account that may call.

    Attributes:
        admin: An administrator.
        tenant: An account that may edit the namespace `default`.
        operator: The operator.
        agent: The agent of the node HERE.
        stray: An agent whose token names no node.
    """

    admin: Api
    tenant: Api
    operator: Api
    agent: Api
    stray: Api


@pytest.fixture(scope="module")
async def callers(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callers]:
    folder = tmp_path_factory.mktemp("callers")
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Api.connect(str(plane.kubeconfig)))
        await prepare(admin)

        async def connect(account: tuple[str, str], node: str | None = None) -> Api:
            client = client_of(admin, plane.kubeconfig, folder, account, node=node)
            return await stack.enter_async_context(client)

        yield Callers(
            admin=admin,
            tenant=await connect(("default", "tenant")),
            operator=await connect(OPERATOR),
            agent=await connect(AGENT, HERE),
            stray=await connect(AGENT),
        )


async def prepare(admin: Api) -> None:
    """Create nodes and a tenant, and remove the webhooks, which no process would answer here."""
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        await admin.delete(resource, "vgpu")
    for node in (HERE, ELSEWHERE):
        await admin.create(NODES, {"metadata": {"name": node}})
    await admin.create(SERVICE_ACCOUNTS, {"metadata": {"namespace": "default", "name": "tenant"}})
    await bind(admin, "edit")
    await policies_in_force(admin)


async def claim(callers: Callers, name: str, *, node: str | None = None) -> Object:
    """Return a claim, allocated on a node by the operator if a node is given."""
    made = await callers.admin.create(VGPU_CLAIMS, a_claim(name, {"memory": "1Gi"}))
    if node is None:
        return made
    await change(
        callers.operator, VGPU_CLAIMS, name, {"metadata": {"finalizers": [FINALIZER_IN_USE]}}
    )
    status = {"allocation": {"nodeName": node, "id": FIRST}, "state": "Allocated"}
    return await change(callers.operator, VGPU_CLAIMS, name, {"status": status}, "status")


async def change(
    api: Api, resource: Resource, name: str, changes: Object, subresource: str | None = None
) -> Object:
    namespace = "default" if resource.namespaced else None
    return await api.merge_patch(
        resource, name, changes, namespace=namespace, subresource=subresource
    )


async def say(api: Api, name: str, **status: Any) -> Object:
    """Write the claim's conditions as the agent does, by server-side apply."""
    condition = {
        "type": "Prepared",
        "status": "True",
        "reason": "LimitsInPlace",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    body = {
        "metadata": {"namespace": "default", "name": name},
        "status": {"conditions": [condition], **status},
    }
    return await api.apply(
        VGPU_CLAIMS, body, field_manager="vgpu-nodeagent", force=True, subresource="status"
    )


async def test_a_tenant_edits_claims_but_not_their_status(callers: Callers) -> None:
    await callers.tenant.create(VGPU_CLAIMS, a_claim("tenants", {"memory": "1Gi"}))
    assert (await callers.tenant.get(VGPU_CLAIMS, "tenants", namespace="default"))["spec"]
    forged = {"status": {"allocation": {"nodeName": HERE}}}
    with pytest.raises(Forbidden, match="vgpuclaims/status"):
        await change(callers.tenant, VGPU_CLAIMS, "tenants", forged, "status")
    # dropped, because this request does not go to the status subresource
    await change(callers.tenant, VGPU_CLAIMS, "tenants", forged)
    found = await callers.tenant.get(VGPU_CLAIMS, "tenants", namespace="default")
    assert found["status"] == {"observedGeneration": -1}
    await callers.tenant.delete(VGPU_CLAIMS, "tenants", namespace="default")


async def test_not_even_an_administrator_writes_a_claims_status(callers: Callers) -> None:
    await claim(callers, "admins")
    with pytest.raises(Invalid, match="only the operator and the agent"):
        await change(
            callers.admin, VGPU_CLAIMS, "admins", {"status": {"state": "Allocated"}}, "status"
        )


async def test_no_devices_are_given_to_a_claim_without_the_finalizer(callers: Callers) -> None:
    await claim(callers, "bare")
    given = {"status": {"allocation": {"nodeName": HERE}}}
    with pytest.raises(Invalid, match=r"without the finalizer vgpu\.dev/in-use"):
        await change(callers.operator, VGPU_CLAIMS, "bare", given, "status")
    await change(callers.operator, VGPU_CLAIMS, "bare", {"status": {"state": "Pending"}}, "status")


async def test_only_the_operator_removes_the_finalizer(callers: Callers) -> None:
    await claim(callers, "kept", node=HERE)
    without = {"metadata": {"finalizers": None}}
    for api in (callers.admin, callers.tenant):
        with pytest.raises(Invalid, match="only the operator removes the finalizer"):
            await change(api, VGPU_CLAIMS, "kept", without)
    await callers.tenant.delete(VGPU_CLAIMS, "kept", namespace="default")
    assert await callers.admin.get(VGPU_CLAIMS, "kept", namespace="default")
    await change(callers.operator, VGPU_CLAIMS, "kept", {"status": {"allocation": None}}, "status")
    await change(callers.operator, VGPU_CLAIMS, "kept", without)


async def test_an_agent_writes_its_conditions_where_the_claim_is_on_its_node(
    callers: Callers,
) -> None:
    await claim(callers, "here", node=HERE)
    await claim(callers, "there", node=ELSEWHERE)
    assert (await say(callers.agent, "here"))["status"]["conditions"][0]["type"] == "Prepared"
    fields = {
        "released": {"allocationID": FIRST, "time": "2026-01-01T00:00:00.5Z"},
        "initReleased": {"allocationID": FIRST, "round": 0, "time": "2026-01-01T00:00:00.5Z"},
        "initWanted": {"allocationID": FIRST, "round": 0},
    }
    status = (await say(callers.agent, "here", **fields))["status"]
    assert {name: status[name] for name in fields} == fields
    assert not fields.keys() & (await say(callers.agent, "here"))["status"].keys()
    for api, name in ((callers.agent, "there"), (callers.stray, "here")):
        with pytest.raises(Invalid, match="claims that are allocated there only"):
            await say(api, name)


@pytest.mark.parametrize(
    "status",
    [
        {"allocation": {"nodeName": HERE, "id": SECOND}},
        {"reservedFor": {"podName": "mine", "podUID": "1"}},
        {"state": "Released"},
        {"summary": "mine"},
        {"cards": "GPU-mine"},
        {"keptForOthers": [{"nodeName": HERE, "devices": 1}]},
        {"observedGeneration": 7},
        {"decider": "me"},
        {
            "conditions": [
                {
                    "type": "Allocated",
                    "status": "True",
                    "reason": "Mine",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
        },
    ],
    ids=lambda status: next(iter(status)),
)
async def test_an_agent_writes_nothing_else_of_a_claims_status(
    callers: Callers, status: dict[str, Any]
) -> None:
    name = f"only-{next(iter(status)).lower()}"
    await claim(callers, name, node=HERE)
    with pytest.raises(Invalid, match="an agent writes its own conditions"):
        await say(callers.agent, name, **status)


async def test_to_allocate_immediately_takes_a_right_of_its_own(callers: Callers) -> None:
    now = a_claim("now", {"memory": "1Gi"}, bindingMode="Immediate")
    later = a_claim("later", {"memory": "1Gi"})
    await callers.tenant.create(VGPU_CLAIMS, later)
    refused = (
        callers.tenant.create(VGPU_CLAIMS, now),
        change(callers.tenant, VGPU_CLAIMS, "later", {"spec": {"bindingMode": "Immediate"}}),
    )
    for attempt in refused:
        with pytest.raises(Forbidden, match="tenant may not allocate devices immediately"):
            await attempt
    await callers.admin.create(VGPU_CLAIMS, now)
    await change(callers.tenant, VGPU_CLAIMS, "now", {"spec": {"ttlSecondsAfterUnused": 1}})
    await bind(callers.admin, "vgpu-allocate-immediately")
    await until_allowed(
        lambda: callers.tenant.create(
            VGPU_CLAIMS, a_claim("soon", {"memory": "1Gi"}, bindingMode="Immediate")
        )
    )


async def bind(admin: Api, role: str) -> None:
    """Give the tenant a ClusterRole in the namespace `default`."""
    await admin.create(
        ROLE_BINDINGS,
        {
            "metadata": {"namespace": "default", "name": role},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "tenant"}],
        },
    )


async def until_allowed(attempt: Callable[[], Awaitable[Object]]) -> None:
    """Wait until the request is allowed; the authorizer reads new bindings with a delay."""
    for _ in range(50):
        with contextlib.suppress(Forbidden):
            await attempt()
            return
        await asyncio.sleep(0.1)
    await attempt()


async def make_device(api: Api, name: str, node: str) -> Object:
    device = {
        "apiVersion": GPU_DEVICES.api_version,
        "kind": GPU_DEVICES.kind,
        "metadata": {"name": name},
        "spec": {"nodeName": node},
    }
    return await api.create(GPU_DEVICES, device)


async def test_an_agent_makes_and_describes_the_devices_of_its_own_node(callers: Callers) -> None:
    await make_device(callers.agent, "gpu-here", HERE)
    await change(callers.agent, GPU_DEVICES, "gpu-here", {"status": {"uuid": "GPU-HERE"}}, "status")
    with pytest.raises(Invalid, match="writes devices of that node only"):
        await make_device(callers.agent, "gpu-there", ELSEWHERE)
    with pytest.raises(Invalid, match="writes devices of that node only"):
        await make_device(callers.stray, "gpu-stray", HERE)
    await make_device(callers.admin, "gpu-there", ELSEWHERE)
    with pytest.raises(Invalid, match="writes devices of that node only"):
        await change(
            callers.agent, GPU_DEVICES, "gpu-there", {"status": {"uuid": "GPU-1"}}, "status"
        )


async def test_an_agent_takes_no_name_that_another_node_must_have(callers: Callers) -> None:
    """The first agent gets the plain name; the name with the node's name is open to every agent."""
    await make_device(callers.admin, "gpu-taken", ELSEWHERE)
    await make_device(callers.agent, f"gpu-taken.{HERE}", HERE)
    for name in (f"gpu-taken.{ELSEWHERE}", f"gpu-other.x.{HERE}", "gpu-other.1234abcd"):
        with pytest.raises(Invalid, match="makes devices named by a UUID"):
            await make_device(callers.agent, name, HERE)


async def test_an_agent_repeats_no_uuid_that_its_object_is_not_named_by(callers: Callers) -> None:
    for name in ("gpu-mine", f"gpu-mine.{HERE}"):
        await make_device(callers.agent, name, HERE)
        with pytest.raises(Invalid, match="is named by another UUID"):
            await change(callers.agent, GPU_DEVICES, name, {"status": {"uuid": "GPU-X"}}, "status")
        await change(callers.agent, GPU_DEVICES, name, {"status": {"uuid": "GPU-Mine"}}, "status")


async def test_what_of_a_device_is_given_away_is_the_operators_to_say(callers: Callers) -> None:
    await make_device(callers.agent, "gpu-given", HERE)
    given = {"status": {"allocated": {"memory": "1Gi", "cores": 1, "slots": 1}}}
    with pytest.raises(Invalid, match="only the operator sets how much"):
        await change(callers.agent, GPU_DEVICES, "gpu-given", given, "status")
    with pytest.raises(Invalid, match="only the operator and the agent"):
        await change(callers.admin, GPU_DEVICES, "gpu-given", given, "status")
    await change(callers.operator, GPU_DEVICES, "gpu-given", given, "status")
    with pytest.raises(ApiError):
        await change(callers.agent, GPU_DEVICES, "gpu-given", {"spec": {"cordoned": True}})
    await change(callers.admin, GPU_DEVICES, "gpu-given", {"spec": {"cordoned": True}})


async def pod(callers: Callers, name: str, node: str) -> None:
    await callers.admin.create(PODS, a_pod(name, a_container(), nodeName=node))


POKE = {"metadata": {"annotations": {"vgpu.dev/poke": "now"}}}


async def test_pods_are_touched_and_nothing_else_of_them_is_changed(callers: Callers) -> None:
    await pod(callers, "touched", HERE)
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "mine"}]
    label = {"metadata": {"labels": {"mine": "yes"}}}
    annotation = {"metadata": {"annotations": {"hami.io/vgpu-node": "mine"}}}
    for api in (callers.operator, callers.agent):
        await change(api, PODS, "touched", POKE)
        for changes in (label, annotation):
            with pytest.raises(Invalid, match=r"only the annotation vgpu\.dev/poke"):
                await change(api, PODS, "touched", changes)
        with pytest.raises(Invalid, match=r"only the annotation vgpu\.dev/poke"):
            await api.json_patch(PODS, "touched", image, namespace="default")


async def test_an_agent_touches_pods_of_its_own_node_only(callers: Callers) -> None:
    await pod(callers, "far", ELSEWHERE)
    for api in (callers.agent, callers.stray):
        with pytest.raises(Invalid, match="touches pods of that node only"):
            await change(api, PODS, "far", POKE)


async def test_of_a_pods_status_the_operator_nominates_a_node_and_no_more(
    callers: Callers,
) -> None:
    await callers.admin.create(PODS, a_pod("nominee", a_container(), schedulerName="nobody"))
    nominated = {"status": {"nominatedNodeName": HERE}}
    await change(callers.operator, PODS, "nominee", nominated, "status")
    with pytest.raises(Invalid, match="only nominatedNodeName"):
        await change(callers.operator, PODS, "nominee", {"status": {"phase": "Failed"}}, "status")
    with pytest.raises(Forbidden):
        await change(callers.agent, PODS, "nominee", nominated, "status")


MARK = {"vgpu.dev/admitted": "true"}


def marked(pod: Object) -> Object:
    return {**pod, "metadata": {**pod["metadata"], "labels": MARK}}


UNSEEN = "the admission webhook of vgpu has not seen"
GPU = {"nvidia.com/gpu": 1}


@pytest.mark.parametrize(
    "unseen",
    [
        a_pod("limits", a_container(limits=GPU)),
        a_pod("memory", a_container(limits={"nvidia.com/gpumem": 1})),
        a_pod("init", a_container(), initContainers=[a_container("first", limits=GPU)]),
        a_pod("claim", a_container(), annotations={"vgpu.dev/claim": "mine"}),
        a_pod("template", a_container(), annotations={"vgpu.dev/claim-template": "mine"}),
    ],
    ids=lambda pod: str(pod["metadata"]["name"]),
)
async def test_a_gpu_pod_that_no_webhook_has_seen_is_refused_by_the_api_server(
    callers: Callers, unseen: Object
) -> None:
    """The webhook configurations are missing here; an administrator may delete them."""
    with pytest.raises(Invalid, match=UNSEEN):
        await callers.tenant.create(PODS, unseen)


async def test_a_pod_as_the_webhook_leaves_it_and_other_vendors_pods_pass_the_backstop(
    callers: Callers,
) -> None:
    container = a_container(limits=GPU)
    container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    seen = a_pod("seen", container)
    with pytest.raises(Invalid, match=UNSEEN):
        await callers.tenant.create(PODS, seen)
    await callers.tenant.create(PODS, marked(seen))
    await callers.tenant.create(PODS, a_pod("others", a_container(limits={"amd.com/gpu": 1})))


@pytest.mark.parametrize("section", ["containers", "initContainers"])
async def test_what_a_later_webhook_makes_of_a_pod_is_refused_by_the_api_server(
    callers: Callers, section: str
) -> None:
    """A webhook that runs last may change a pod after ours was called for the second time."""
    container = a_container(limits=GPU)
    container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    added = {**container, "name": "added", "securityContext": {"privileged": True}}
    changed = a_pod("changed", container)
    changed["spec"].setdefault(section, []).append(added)
    with pytest.raises(Invalid, match="spec: Forbidden: a webhook made a container privileged"):
        await callers.tenant.create(PODS, marked(changed))
    shown = a_pod(
        "shown", {**container, "env": [*container["env"], {"name": "NVIDIA_VISIBLE_DEVICES"}]}
    )
    with pytest.raises(Invalid, match=UNSEEN):
        await callers.tenant.create(PODS, marked(shown))


async def test_a_pod_that_admission_has_not_read_stays_marked_as_such(callers: Callers) -> None:
    """Without that label the pod would get devices that admission might have refused."""
    unread = a_pod("unread", a_container())
    unread["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    await callers.tenant.create(PODS, unread)
    await callers.tenant.create(PODS, a_pod("read", a_container()))
    for name, value in (("unread", None), ("unread", "no"), ("read", "ignore")):
        label = {"metadata": {"labels": {"hami.io/webhook": value}}}
        with pytest.raises(Invalid, match=r"labels\[hami\.io/webhook\]: Forbidden"):
            await change(callers.tenant, PODS, name, label)
    await change(callers.tenant, PODS, "unread", {"metadata": {"labels": {"mine": "yes"}}})


async def test_nobody_marks_a_pod_where_no_webhook_reads_it(callers: Callers) -> None:
    """Not even an administrator can: the mark records what admission did."""
    labels = {"hami.io/webhook": "ignore"}
    await callers.admin.create(NAMESPACES, {"metadata": {"name": "left-alone", "labels": labels}})
    for namespace in ("left-alone", "kube-system"):
        pod = a_pod("forged", a_container(limits=GPU))
        pod["metadata"]["namespace"] = namespace
        with pytest.raises(Invalid, match=r"labels\[vgpu\.dev/admitted\]: Forbidden"):
            await callers.admin.create(PODS, marked(pod))
        await callers.admin.create(PODS, pod)


async def test_nobody_marks_a_pod_that_exists(callers: Callers) -> None:
    await callers.tenant.create(PODS, a_pod("plain", a_container()))
    for api, subresource in (
        (callers.tenant, None),
        (callers.admin, None),
        (callers.admin, "status"),
    ):
        with pytest.raises(Invalid, match=r"labels\[vgpu\.dev/admitted\]: Forbidden"):
            await change(api, PODS, "plain", {"metadata": {"labels": MARK}}, subresource)
    await change(callers.tenant, PODS, "plain", {"metadata": {"labels": {"mine": "yes"}}})
    await callers.tenant.create(PODS, marked(a_pod("other", a_container())))
    other = {"metadata": {"labels": {"vgpu.dev/admitted": "no"}}}
    with pytest.raises(Invalid, match=r"labels\[vgpu\.dev/admitted\]: Forbidden"):
        await change(callers.tenant, PODS, "other", other)
    dropped = {"metadata": {"labels": {"vgpu.dev/admitted": None}}}
    await change(callers.tenant, PODS, "other", dropped)


async def test_only_the_operator_takes_our_gate_off_a_pod(callers: Callers) -> None:
    """A pod whose author could remove the gate would overtake the waiting pods."""
    gates = [{"name": "vgpu.dev/placement"}, {"name": "mine.dev/own"}]
    pod = marked(a_pod("waits", a_container(), schedulingGates=gates))
    await callers.tenant.create(PODS, pod)

    async def lift(api: Api, *left: str) -> Object:
        names = [{"name": name} for name in left]
        operation = {"op": "replace", "path": "/spec/schedulingGates", "value": names}
        return await api.json_patch(PODS, "waits", [operation], namespace="default")

    for api in (callers.tenant, callers.admin):
        for left in ((), ("mine.dev/own",)):
            with pytest.raises(Invalid, match="only the operator removes the gate"):
                await lift(api, *left)
    await lift(callers.tenant, "vgpu.dev/placement")
    dropped = {"metadata": {"labels": {"vgpu.dev/admitted": None}}}
    await change(callers.tenant, PODS, "waits", dropped)
    await lift(callers.tenant)  # and so it gets no device


async def test_an_agent_annotates_its_own_node_with_its_devices_and_no_more(
    callers: Callers,
) -> None:
    kinds = ("register", "score")
    devices = {"metadata": {"annotations": {f"hami.io/node-nvidia-{kind}": "[]" for kind in kinds}}}
    await change(callers.agent, NODES, HERE, devices)
    with pytest.raises(Invalid, match="node"):
        await change(callers.agent, NODES, ELSEWHERE, devices)
    for changes in ({"metadata": {"labels": {"a": "b"}}}, {"spec": {"unschedulable": True}}):
        with pytest.raises(Invalid, match="only the annotation"):
            await change(callers.agent, NODES, HERE, changes)


async def test_an_agent_writes_no_lease(callers: Callers) -> None:
    lease = {"metadata": {"namespace": AGENT_NAMESPACE, "name": HERE}, "spec": {}}
    with pytest.raises(Forbidden):
        await callers.agent.apply(LEASES, lease, field_manager=FIELD_MANAGER_AGENT, force=True)


def an_event(kind: str, version: str, component: str = "vgpu-nodeagent") -> Object:
    return {
        "metadata": {"generateName": "e-", "namespace": "default"},
        "involvedObject": {
            "kind": kind,
            "apiVersion": version,
            "name": "x",
            "namespace": "default",
        },
        "type": "Warning",
        "reason": "Test",
        "message": "a test",
        "source": {"component": component},
    }


async def test_an_agent_writes_events_about_what_it_serves_and_in_its_own_name(
    callers: Callers,
) -> None:
    for kind, version in (
        ("Pod", "v1"),
        ("VGPUClaim", "vgpu.dev/v1alpha1"),
        ("GPUDevice", "vgpu.dev/v1alpha1"),
    ):
        await callers.agent.create(EVENTS, an_event(kind, version))
    for kind, version in (("Secret", "v1"), ("Deployment", "apps/v1"), ("Pod", "other.dev/v1")):
        with pytest.raises(Invalid, match=r"involvedObject\.kind: Forbidden"):
            await callers.agent.create(EVENTS, an_event(kind, version))
    with pytest.raises(Invalid, match="as vgpu-nodeagent only"):
        await callers.agent.create(EVENTS, an_event("Pod", "v1", component="kubelet"))
    with pytest.raises(Invalid, match="names no node"):
        await callers.stray.create(EVENTS, an_event("Pod", "v1"))
    await callers.admin.create(EVENTS, an_event("Deployment", "apps/v1", component="kubelet"))


async def test_what_is_installed_again_is_accepted_and_keeps_certificates(
    plane: ControlPlane, callers: Callers, tmp_path: Path
) -> None:
    filled = {"data": {"tls.crt": "eA=="}}
    await callers.admin.merge_patch(SECRETS, "vgpu-webhook-tls", filled, namespace="vgpu-system")
    install(plane, tmp_path, webhook_port=1)
    try:
        found = await callers.admin.get(SECRETS, "vgpu-webhook-tls", namespace="vgpu-system")
        assert found["data"] == filled["data"]
    finally:
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            await callers.admin.delete(resource, "vgpu")


async def test_without_webhooks_no_container_of_a_gpu_pod_chooses_its_devices(
    callers: Callers,
) -> None:
    """If a variable is set twice, a container gets the last value."""
    void, every = ({"name": "NVIDIA_VISIBLE_DEVICES", "value": v} for v in ("void", "all"))
    for number, env in enumerate(([], [every], [void, every], [every, void])):
        pod = a_pod(f"chooser-{number}", a_container(limits={"nvidia.com/gpu": 1}, env=env))
        with pytest.raises(Invalid, match="the admission webhook of vgpu has not"):
            await callers.tenant.create(PODS, pod)


async def test_without_webhooks_a_debugger_of_a_gpu_pod_chooses_no_devices(
    callers: Callers,
) -> None:
    void, every = ({"name": "NVIDIA_VISIBLE_DEVICES", "value": v} for v in ("void", "all"))
    gpu = a_container(limits={"nvidia.com/gpu": 1}, env=[void])
    await callers.admin.create(PODS, marked(a_pod("debugged", gpu)))
    await callers.admin.create(PODS, a_pod("debugged-plain", a_container()))

    async def debug(pod: str, *env: list[Object]) -> Object:
        added = [{"name": f"d{n}", "image": "x", "env": given} for n, given in enumerate(env)]
        change_ = {"spec": {"ephemeralContainers": added}}
        return await change(callers.admin, PODS, pod, change_, "ephemeralcontainers")

    for env in ([], [every], [void, every]):
        with pytest.raises(Invalid, match="kubectl debug --env=NVIDIA_VISIBLE_DEVICES=void"):
            await debug("debugged", env)
    privileged = {"privileged": True}
    added = [{"name": "d0", "image": "x", "env": [void], "securityContext": privileged}]
    change_ = {"spec": {"ephemeralContainers": added}}
    with pytest.raises(Invalid, match="a privileged container, in a pod that asks for a GPU"):
        await change(callers.admin, PODS, "debugged", change_, "ephemeralcontainers")
    await debug("debugged", [void])
    with pytest.raises(Invalid, match="kubectl debug --env"):
        await debug("debugged", [void], [every])
    await debug("debugged", [void], [void])
    await debug("debugged-plain", [every])
