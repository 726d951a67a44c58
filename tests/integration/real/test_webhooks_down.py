"""While no webhook answers, pods that request devices wait; the rest of the cluster works."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vgpu_api.resources import NAMESPACES, PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import ApiError, Forbidden
from vgpu_client.transport import Object
from vgpu_local.accounts import OPERATOR, kubeconfig_with, token
from vgpu_local.control_plane import ControlPlane
from vgpu_local.kubectl import Kubectl
from vgpu_local.steps import a_claim, a_container, a_pod

DOWN = r"failed calling webhook .*vgpu\.dev"


@pytest.fixture(scope="module")
async def admin(plane: ControlPlane) -> AsyncIterator[Api]:
    async with Api.connect(str(plane.kubeconfig)) as api:
        yield api


REFUSED: dict[str, Object] = {
    "limits": a_pod("limits", a_container(limits={"nvidia.com/gpu": 1})),
    "memory-alone": a_pod("memory-alone", a_container(limits={"nvidia.com/gpumem": 1})),
    "alibabas": a_pod("alibabas", a_container(limits={"aliyun.com/gpu-mem": 1})),
    "init": a_pod(
        "init",
        a_container(),
        initContainers=[a_container("first", limits={"nvidia.com/gpu": 1})],
    ),
    "claim": a_pod("claim", a_container(), annotations={"vgpu.dev/claim": "mine"}),
    "template": a_pod("template", a_container(), annotations={"vgpu.dev/claim-template": "mine"}),
    "forged": a_pod("forged", a_container(), annotations={"vgpu.dev/slots-added": "main"}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_pod_that_asks_for_a_device_is_not_admitted(admin: Api, name: str) -> None:
    with pytest.raises(ApiError, match=DOWN):
        await admin.create(PODS, REFUSED[name])


async def test_any_other_pod_is_admitted(admin: Api) -> None:
    await admin.create(PODS, a_pod("plain", a_container()))
    await admin.create(PODS, a_pod("bounded", a_container(limits={"memory": 1 << 20})))
    await admin.create(PODS, a_pod("noted", a_container(), annotations={"example.com/a": "b"}))


@pytest.mark.parametrize(
    "resource",
    ["smarter-devices/fuse", "vpc.amazonaws.com/efa", "rdma/hca", "amd.com/gpu", "a.b/gpus"],
)
async def test_a_pod_that_asks_for_another_vendors_device_does_not_wait_for_us(
    admin: Api, resource: str
) -> None:
    name = resource.replace("/", "-").replace(".", "-")
    await admin.create(PODS, a_pod(name, a_container(limits={resource: 1})))


async def test_what_may_be_misspelt_is_admitted_as_nobody_is_there_to_warn(admin: Api) -> None:
    await admin.create(PODS, a_pod("misspelt", a_container(limits={"nvidia.com/gpumemory": 1})))


async def test_a_namespace_with_the_label_of_hamis_is_left_alone(admin: Api) -> None:
    labels = {"hami.io/webhook": "ignore"}
    await admin.create(NAMESPACES, {"metadata": {"name": "left-alone", "labels": labels}})
    pod = a_pod("left-alone", a_container(limits={"nvidia.com/gpu": 1}))
    pod["metadata"]["namespace"] = "left-alone"
    async with asyncio.timeout(30):
        while True:
            try:
                await admin.create(PODS, pod)
                return
            except Forbidden:  # the namespace needs its ServiceAccount first
                await asyncio.sleep(0.1)


async def test_infrastructure_does_not_wait_for_us_whatever_it_asks_for(admin: Api) -> None:
    pod = a_pod("infrastructure", a_container(limits={"nvidia.com/gpu": 1}))
    for namespace in ("kube-system", "vgpu-node"):
        pod["metadata"]["namespace"] = namespace
        await admin.create(PODS, pod)


async def test_the_operator_makes_claims_and_nobody_else_does(
    plane: ControlPlane, admin: Api, tmp_path: Path
) -> None:
    bearer = await token(admin, OPERATOR)
    path = kubeconfig_with(plane.kubeconfig, tmp_path / "operator", bearer)
    async with Api.connect(str(path)) as operator:
        await operator.create(VGPU_CLAIMS, a_claim("operators", {"memory": "1Gi"}))
    with pytest.raises(ApiError, match=DOWN):
        await admin.create(VGPU_CLAIMS, a_claim("admins", {"memory": "1Gi"}))


CALLS = re.compile(
    r'^apiserver_admission_webhook_request_total\{.*name="[^"]*vgpu\.dev".*\} (\d+)$'
)


def calls(plane: ControlPlane) -> int:
    """Return how often the API server has called one of our webhooks, by its own metrics."""
    done = Kubectl.find(plane.kubeconfig).run("get", "--raw", "/metrics")
    assert done.returncode == 0, done.stderr
    return sum(int(found[1]) for line in done.stdout.splitlines() if (found := CALLS.match(line)))


async def test_the_api_server_counts_no_call_for_pods_that_ask_for_no_device(
    plane: ControlPlane, admin: Api
) -> None:
    before = calls(plane)
    for number in range(20):
        await admin.create(PODS, a_pod(f"plain-{number}", a_container(limits={"cpu": 1})))
        await admin.merge_patch(
            PODS, f"plain-{number}", {"metadata": {"labels": {"a": "b"}}}, namespace="default"
        )
    assert calls(plane) == before
    with pytest.raises(ApiError, match=DOWN):
        await admin.create(PODS, REFUSED["limits"])
    assert calls(plane) > before
