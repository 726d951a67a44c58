"""CEL selectors of users' ResourceClaims and templates, on a stock kube-scheduler.

The API server compiles the expressions itself, so it refuses what is no CEL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vgpu_api.dra import HAMI_CLASS
from vgpu_api.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_client.errors import ApiError
from vgpu_client.transport import Object
from vgpu_local.control_plane import ControlPlane, MinorVersion, Options
from vgpu_local.installed import InstalledCluster
from vgpu_local.nodes import A100, A100_PCIE, T4, gpu_node
from vgpu_local.steps import a_container, a_pod

MODEL = 'device.attributes["vgpu.dev"].productName'
MEMORY = 'device.capacity["vgpu.dev"].memory'
OF_HAMI = f'device.capacity["{HAMI_CLASS}"].memory'

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(kubernetes_version: MinorVersion) -> Iterator[InstalledCluster]:
    nodes = [gpu_node("small", [T4]), gpu_node("middle", [A100_PCIE]), gpu_node("large", [A100])]
    options = Options(controllers=True, version=kubernetes_version)
    with (
        ControlPlane(options) as plane,
        InstalledCluster(nodes, overlay="claims", plane=plane) as running,
    ):
        yield running


def a_claim(expression: str, class_name: str) -> Object:
    exactly = {
        "deviceClassName": class_name,
        "capacity": {"requests": {"memory": "1Gi", "cores": "10"}},
        "selectors": [{"cel": {"expression": expression}}],
    }
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def a_user(name: str, entry: dict[str, Any]) -> Object:
    container = a_container()
    container["resources"] = {"claims": [{"name": "gpu"}]}
    return a_pod(name, container, resourceClaims=[{"name": "gpu", **entry}])


def create(cluster: InstalledCluster, *objects: tuple[Any, Object]) -> None:
    for resource, obj in objects:
        cluster.run(cluster.api.create(resource, obj))


def node_of(cluster: InstalledCluster, name: str) -> str:
    pod = cluster.wait_for(PODS, name, lambda pod: pod["spec"].get("nodeName"))
    node: str = pod["spec"]["nodeName"]
    return node


@pytest.mark.parametrize(
    ("name", "expression", "class_name", "node"),
    [
        ("least", f'{MEMORY}.compareTo(quantity("41Gi")) >= 0', "vgpu.dev", "large"),
        ("most", f'{MEMORY}.isLessThan(quantity("20G"))', "vgpu.dev", "small"),
        ("between", f'{MEMORY} > quantity("1")', "vgpu.dev", ""),
        (
            "range",
            f'{MEMORY}.isGreaterThan(quantity("18G")) && !{MEMORY}.isGreaterThan(quantity("50G"))',
            "vgpu.dev",
            "middle",
        ),
        ("exact", f"{MODEL} in ['T4', 'Tesla T4']", "vgpu.dev", "small"),
        (
            "either",
            f'{MODEL} == "T4" || {MODEL} != "Tesla T4" && {MEMORY}.isLessThan(quantity("64Gi"))',
            "vgpu.dev",
            "middle",
        ),
        ("hami", f'{OF_HAMI}.compareTo(quantity("80Gi")) == 0', HAMI_CLASS, "large"),
    ],
)
def test_a_template_and_a_claim_choose_devices_by_their_memory_and_exact_model(
    cluster: InstalledCluster, name: str, expression: str, class_name: str, node: str
) -> None:
    spec = a_claim(expression, class_name)
    metadata = {"name": name, "namespace": "default"}
    if not node:
        with pytest.raises(ApiError, match="compilation failed"):
            create(cluster, (RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec}))
        return
    template = {"metadata": metadata, "spec": {"spec": spec}}
    create(
        cluster,
        (RESOURCE_CLAIM_TEMPLATES, template),
        (RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec}),
        (PODS, a_user(f"{name}-template", {"resourceClaimTemplateName": name})),
        (PODS, a_user(f"{name}-claim", {"resourceClaimName": name})),
    )
    assert node_of(cluster, f"{name}-template") == node
    assert node_of(cluster, f"{name}-claim") == node


def test_a_pod_waits_while_no_device_is_large_enough(cluster: InstalledCluster) -> None:
    spec = a_claim(f'{MEMORY}.isGreaterThan(quantity("80Gi"))', "vgpu.dev")
    template = {"metadata": {"name": "huge", "namespace": "default"}, "spec": {"spec": spec}}
    create(
        cluster,
        (RESOURCE_CLAIM_TEMPLATES, template),
        (PODS, a_user("huge", {"resourceClaimTemplateName": "huge"})),
    )

    def told() -> bool:
        return any(
            condition["type"] == "Allocated" and "CardTypeMismatch" in condition["message"]
            for claim in cluster.objects(VGPU_CLAIMS)
            for condition in claim.get("status", {}).get("conditions", [])
        )

    cluster.until(told, lambda: cluster.objects(VGPU_CLAIMS))
