"""A live cluster, read once, as `simulate` asks about it: what would become of a pod there, now."""

from __future__ import annotations

from vgpu_api.core import Node, ResourceQuota
from vgpu_api.resources import GPU_DEVICES, NODES, RESOURCE_QUOTAS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import GPUDevice, VGPUClaim
from vgpu_client.api import Api
from vgpu_operator.cli.cluster import Cluster
from vgpu_operator.cli.documents import ClusterState
from vgpu_operator.cli.installed import installed_config
from vgpu_operator.cli.listing import listed


async def read_cluster(kubeconfig: str | None, context: str | None) -> Cluster:
    """Read nodes, devices, quotas and claims. Nothing is written to the cluster, now or later.

    Raises:
        ClientError: The API server is away, or refuses it.
        CannotAnswer: The project is not installed there.
    """
    async with Api.connect(kubeconfig, context) as api:
        config = await installed_config(api)
        shown = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        cluster = Cluster(ClusterState(config=shown), source="the installed configuration")
        devices: dict[str, list[GPUDevice]] = {}
        for raw in (await listed(api, GPU_DEVICES)).items:
            device = GPUDevice.model_validate(raw)
            devices.setdefault(device.spec.node_name, []).append(device)
        for raw in (await api.list(NODES)).items:
            node = Node.model_validate(raw)
            if node.metadata.name in devices:
                cluster.observe_node(node, devices[node.metadata.name])
        for raw in (await api.list(RESOURCE_QUOTAS)).items:
            cluster.observe_quota(ResourceQuota.model_validate(raw))
        for raw in (await listed(api, VGPU_CLAIMS)).items:
            cluster.observe_claim(VGPUClaim.read(raw))
    return cluster
