"""HAMi's records of an allocation, for people and other tools. The operator never reads them.

HAMi v2.10 encodes each container, init containers first, as `UUID,Vendor,MiB,cores:` for each
device and a final `;`. A container without a device is just `;`.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_api import names
from vgpu_api.core import Node, Pod
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation, VGPUClaimSpec
from vgpu_api.vendors import kind_of
from vgpu_operator.dialects.containers import each_container
from vgpu_operator.dialects.native import containers_of_claim
from vgpu_operator.dialects.vendors import requested_numbering
from vgpu_operator.vendors import given_of, records_of


def binding_annotations(
    pod: Pod, spec: VGPUClaimSpec, allocation: Allocation, *, node: Node | None, unix_time: int
) -> dict[str, str]:
    """Return the annotations that the Binding adds to the pod.

    `spec` is the claim's spec, `node` the node of the allocation if it is known, and `unix_time`
    the time of the allocation in seconds.

    Raises:
        BadInput: The claim's requests do not match the pod's containers, or the node's register
            lacks values that the vendor's plugin must read back.
    """
    vendor_of = {request.name: request.vendor for request in spec.requests}
    others = [d for d in allocation.devices if kind_of(vendor_of.get(d.request, "")) is not None]
    written = _of_other_vendors(pod, spec, allocation, others, node=node, unix_time=unix_time)
    if others and len(others) == len(allocation.devices):
        return written
    container_of = dict(
        zip(
            (request.name for request in spec.requests),
            containers_of_claim(pod, spec),
            strict=True,
        )
    )
    devices: dict[str, str] = {}
    for device in allocation.devices:
        if device in others:
            continue
        container = container_of.get(device.request, device.request)
        vendor = vendor_of.get(device.request, "nvidia").upper()
        entry = f"{device.uuid},{vendor},{device.memory_mib},{device.cores}:"
        devices[container] = devices.get(container, "") + entry
    encoded = "".join(f"{devices.get(place.name, '')};" for place in each_container(pod))
    return {
        **written,
        names.HAMI_DEVICES_ALLOCATED: encoded,
        names.HAMI_NODE: allocation.node_name,
        names.HAMI_TIME: str(unix_time),
    }


def _of_other_vendors(
    pod: Pod,
    spec: VGPUClaimSpec,
    allocation: Allocation,
    devices: Sequence[AllocatedDevice],
    *,
    node: Node | None,
    unix_time: int,
) -> dict[str, str]:
    """Return the annotations that other vendors' device plugins read back."""
    kind_by_request = {
        request.name: kind
        for request in spec.requests
        if (kind := kind_of(request.vendor)) is not None
    }
    requests = dict(
        zip(containers_of_claim(pod, spec), (r.name for r in spec.requests), strict=True)
    )
    kinds = {kind_by_request[device.request].name: kind_by_request[device.request]
             for device in devices}  # fmt: skip
    given = {
        name: [
            [
                given_of(
                    kind,
                    node,
                    device.uuid,
                    index=device.index,
                    memory_mib=device.memory_mib,
                    cores=device.cores,
                    core_ids=tuple(device.core_ids or ())
                    if requested_numbering(kind, place) is not None
                    else (),
                    part=device.part or "",
                )
                for device in devices
                if device.request == requests.get(place.name)
                and kind_by_request[device.request].name == name
            ]
            for place in each_container(pod)
        ]
        for name, kind in kinds.items()
    }
    return records_of(
        given,
        kinds,
        containers=[place.name for place in each_container(pod)],
        node=allocation.node_name,
        unix_time=unix_time,
    )
