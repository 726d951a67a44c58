"""A pod's demand on its node besides devices, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from vgpu_api.core import Pod
from vgpu_api.host import requests_of
from vgpu_operator.node_filter.pod_affinity import PeerRules
from vgpu_operator.node_filter.storage_objects import VolumeClaimKey, volume_claims_of

Port = tuple[str, str, int]
"""(protocol, host address, number)."""

ANY_ADDRESS = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class HostDemand:
    """A pod's demand on its node besides devices. Pods with equal demands fit on the same nodes.

    Attributes:
        amounts: The amount of each resource in the units of `vgpu_api.host`, sorted by name.
        ports: The host ports.
        peers: The rules about other pods, and the pod's labels.
        volumes: The PersistentVolumeClaims of the pod's volumes.
    """

    amounts: tuple[tuple[str, int], ...] = ()
    ports: tuple[Port, ...] = ()
    peers: PeerRules = field(default_factory=PeerRules)
    volumes: tuple[VolumeClaimKey, ...] = ()

    @classmethod
    def of(cls, pod: Pod) -> HostDemand:
        """Compute the demand of a pod."""
        amounts = tuple(sorted(requests_of(pod).items()))
        ports = tuple(sorted(_ports_of(pod)))
        return cls(amounts, ports, PeerRules.of(pod), volume_claims_of(pod))


def _ports_of(pod: Pod) -> list[Port]:
    """Return the host ports of all containers that run at the same time, including sidecars."""
    sidecars = [each for each in pod.spec.init_containers if each.is_sidecar]
    found: list[Port] = []
    for container in (*sidecars, *pod.spec.containers):
        for port in container.ports:
            number = port.get("hostPort")
            if isinstance(number, int) and number > 0:
                address = str(port.get("hostIP") or ANY_ADDRESS)
                found.append((str(port.get("protocol") or "TCP"), address, number))
    return found
