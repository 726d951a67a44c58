"""Check that no device was allocated twice, and that every bound pod has its devices."""

from __future__ import annotations

from collections import Counter

from perf.cluster_bench.paper import COUNT, MEMORY_MIB, SLOTS
from perf.cluster_bench.timed import NAMESPACE
from vgpu_api.names import ANNOTATION_RESOURCES, pod_claim_name
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.api import Api


async def promises(api: Api) -> dict[str, int]:
    """Count broken promises; all should be zero."""
    claims = [VGPUClaim.read(raw) for raw in (await api.list(VGPU_CLAIMS)).items]
    nodes: dict[tuple[str | None, str], str] = {}
    memory, cores, slots = (Counter[str]() for _ in range(3))
    for claim in claims:
        allocation = claim.status.allocation
        if allocation is None:
            continue
        nodes[claim.metadata.namespace, claim.metadata.name] = allocation.node_name
        for device in allocation.devices:
            memory[device.uuid] += device.memory_mib
            cores[device.uuid] += device.cores
            slots[device.uuid] += 1
    elsewhere = without = 0
    for pod in (await api.list(PODS, namespace=NAMESPACE)).items:
        metadata = pod["metadata"]
        limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
        node = pod["spec"].get("nodeName")
        # In Gate mode only the count is left in the limits; in Claims mode nothing is left.
        asks = COUNT in limits or ANNOTATION_RESOURCES in metadata.get("annotations", {})
        if node is None or not asks:
            continue
        name = pod_claim_name(metadata["name"], metadata["uid"])
        allocated = nodes.get((NAMESPACE, name))
        without += allocated is None
        elsewhere += allocated not in (None, node)
    return {
        "devices_over_capacity": sum(
            memory[uuid] > MEMORY_MIB or cores[uuid] > 100 or slots[uuid] > SLOTS for uuid in memory
        ),
        "bound_without_allocation": without,
        "bound_elsewhere_than_allocated": elsewhere,
    }
