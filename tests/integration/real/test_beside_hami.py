"""A real API server with the policies of overlays/beside-hami admits and refuses the right pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from vgpu_api import names
from vgpu_api.core import Node, Pod
from vgpu_api.names import OPERATOR_USER
from vgpu_api.resources import (
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    VALIDATING_WEBHOOKS,
    VGPU_CLAIMS,
)
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api
from vgpu_client.errors import Forbidden, Invalid
from vgpu_client.transport import Object
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installation import install, policies_in_force
from vgpu_local.steps import a_container, a_pod
from vgpu_operator.insight.hami_records import read_record
from vgpu_operator.insight.held_claims import claim_to_hold, status_to_hold

UNSERVED = 1
OURS, HAMIS = "team-ours", "team-hami"
GPU, COUNT = "GPU-03f69c50-207a-2038-9b45-23cac89cb67d", "nvidia.com/gpu"
ID = "00000000-0000-4000-8000-000000000001"
REFUSED = (Forbidden, Invalid)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with overlays/beside-hami, without our programs."""
    with ControlPlane(Options(controllers=True)) as running:
        folder = tmp_path_factory.mktemp("install")
        install(running, folder, webhook_port=UNSERVED, overlay_name="beside-hami")
        yield running


@pytest.fixture
async def admin(beside: ControlPlane) -> AsyncIterator[Api]:
    """An administrator's client; the webhooks are removed, so that only the policies answer."""
    async with Api.connect(str(beside.kubeconfig)) as api:
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            for found in (await api.list(resource)).items:
                await api.delete(resource, found["metadata"]["name"])
        if not (await api.list(NODES)).items:
            await api.create(NODES, {"metadata": {"name": "n1"}})
            for name, labels in ((OURS, {names.LABEL_ADMISSION: names.ON}), (HAMIS, {})):
                await api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
            await policies_in_force(api)
        yield api


def a_gpu_pod(namespace: str, name: str, **metadata: object) -> Object:
    pod = a_pod(name, a_container(limits={COUNT: 1, "nvidia.com/gpumem": 4096}))
    pod["metadata"] |= {"namespace": namespace, **metadata}
    pod["spec"] |= {"automountServiceAccountToken": False}
    return pod


async def test_pods_of_hamis_namespaces_are_created_and_ours_need_admission(admin: Api) -> None:
    await admin.create(PODS, a_gpu_pod(HAMIS, "hamis"))
    with pytest.raises(REFUSED, match="admission webhook of vgpu has not seen this pod"):
        await admin.create(PODS, a_gpu_pod(OURS, "ours"))


async def test_nobody_marks_a_pod_where_no_webhook_of_ours_reads_it(admin: Api) -> None:
    mark = {"labels": {names.LABEL_ADMITTED: names.ADMITTED}}
    with pytest.raises(REFUSED, match="the admission webhook of vgpu alone writes it"):
        await admin.create(PODS, a_gpu_pod(HAMIS, "forged", **mark))


async def test_a_held_claim_is_written_as_the_operator_and_by_nobody_else(admin: Api) -> None:
    records = {names.HAMI_DEVICES_ALLOCATED: f"{GPU},NVIDIA,4096,30:;", names.HAMI_NODE: "n1"}
    made = a_gpu_pod(HAMIS, "runs", annotations=records)
    made["spec"]["nodeName"] = "n1"
    pod = Pod.model_validate(await admin.create(PODS, made))
    node = Node.model_validate(await admin.get(NODES, "n1"))
    recorded = read_record(pod, count_resource=COUNT)

    operator = admin.acting_as(OPERATOR_USER)
    claim = await operator.create(VGPU_CLAIMS, claim_to_hold(recorded))
    status = status_to_hold(
        VGPUClaim.read(claim),
        recorded,
        node_uid=node.metadata.uid,
        indices={GPU: 0},
        allocation_id=ID,
        unix=1.0,
    )
    name = claim["metadata"]["name"]

    async def write(api: Api) -> Object:
        version = {"resourceVersion": claim["metadata"]["resourceVersion"]}
        changes = {"metadata": version, "status": status.to_wire()}
        return await api.merge_patch(
            VGPU_CLAIMS, name, changes, namespace=HAMIS, subresource="status"
        )

    with pytest.raises(REFUSED, match="only the operator and the agent"):
        await write(admin)
    written = VGPUClaim.read(await write(operator))
    assert written.held_for == names.HAMI
    assert written.status == status
