"""HAMi's records of the progress of a binding, for other tools. The operator never reads them.

HAMi's Bind writes `allocating`. Its device plugin writes `success`, and removes allocated devices
from `hami.io/vgpu-devices-to-allocate`. Here a pod is bound only once its devices are in its claim,
so the Binding carries the final phase, and nothing is left to allocate.
"""

from __future__ import annotations

import json

from vgpu_api import names
from vgpu_api.core import Pod
from vgpu_api.v1alpha1 import Allocation, VGPUClaimSpec
from vgpu_operator.dialects.containers import each_container
from vgpu_operator.dialects.native import containers_of_claim


def bind_records(
    pod: Pod, spec: VGPUClaimSpec, allocation: Allocation, *, unix_time: int
) -> dict[str, str]:
    """Return the annotations in the final state of a successful allocation by HAMi.

    `hami.io/vgpu-mig-allocations` lists the MIG instances by the position of the container (init
    containers first) and of the device in it. It lacks the identity of an instance, which the
    driver assigns on creation.

    Raises:
        BadInput: The claim's requests do not match the pod's containers.
    """
    places = [place.name for place in each_container(pod)]
    records = {
        names.HAMI_BIND_PHASE: "success",
        names.HAMI_BIND_TIME: str(unix_time),
        names.HAMI_DEVICES_TO_ALLOCATE: ";" * len(places),
    }
    containers = containers_of_claim(pod, spec)
    container_of = dict(zip((request.name for request in spec.requests), containers, strict=True))
    instances: list[dict[str, object]] = []
    taken: dict[str, int] = {}
    for device in allocation.devices:
        container = container_of.get(device.request, device.request)
        number = taken.get(container, 0)
        taken[container] = number + 1
        if device.mig is None or container not in places:
            continue
        instances.append(
            {
                "containerIndex": places.index(container),
                "deviceIndex": number,
                "gpuUUID": device.uuid,
                "profile": device.mig.profile,
                "placement": {"start": device.mig.start, "size": device.mig.size},
            }
        )
    if instances:
        records[names.HAMI_MIG_ALLOCATIONS] = json.dumps(instances, separators=(",", ":"))
    return records
