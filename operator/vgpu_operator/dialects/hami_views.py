"""HAMi's records of an allocation, for the people and tools that read them; we never do.

Source: HAMi v2.10 encodes per container, init containers first, `UUID,Vendor,MiB,cores:` for each
card and `;` at the container's end; a container without a card is a bare `;`.
"""

from __future__ import annotations

from vgpu_api import names
from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_operator.dialects.containers import each_container
from vgpu_operator.dialects.native import containers_of_claim


def binding_annotations(
    pod: Pod, spec: VGPUClaimSpec, allocation: Allocation, *, unix_time: int
) -> dict[str, str]:
    """The annotations that the Binding carries onto the pod.

    `spec` is the claim's, `unix_time` the second in which the cards were given.

    Raises:
        BadInput: the claim's requests do not match the pod's containers.
    """
    container_of = dict(
        zip(
            (request.name for request in spec.requests),
            containers_of_claim(pod, spec),
            strict=True,
        )
    )
    vendor_of = {request.name: request.vendor.upper() for request in spec.requests}
    cards: dict[str, str] = {}
    for device in allocation.devices:
        container = container_of.get(device.request, device.request)
        vendor = vendor_of.get(device.request, "NVIDIA")
        entry = f"{device.uuid},{vendor},{device.memory_mib},{device.cores}:"
        cards[container] = cards.get(container, "") + entry
    encoded = "".join(f"{cards.get(place.name, '')};" for place in each_container(pod))
    return {
        names.HAMI_DEVICES_ALLOCATED: encoded,
        names.HAMI_NODE: allocation.node_name,
        names.HAMI_TIME: str(unix_time),
    }
