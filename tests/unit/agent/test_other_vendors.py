"""The agent leaves devices of other vendors to their device plugins."""

from __future__ import annotations

from builders import a_claim, a_request, an_allocated_device, an_allocation
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_nodeagent.state.node_view import nvidias_part


def of(*vendors: str) -> VGPUClaim:
    """Return an allocated claim with a request and a device for each vendor."""
    requests = [a_request(name=f"c{at}", vendor=vendor) for at, vendor in enumerate(vendors)]
    devices = [
        an_allocated_device(request=f"c{at}", uuid=f"{vendor}-{at}")
        for at, vendor in enumerate(vendors)
    ]
    return a_claim(requests=requests, allocation=an_allocation(*devices))


def test_a_claim_of_nvidias_devices_is_seen_as_it_is() -> None:
    claim = of("nvidia", "nvidia")
    assert nvidias_part(claim) is claim


def test_of_a_mixed_claim_the_agent_sees_nvidias_part() -> None:
    part = nvidias_part(of("nvidia", "hygon"))
    assert [request.name for request in part.spec.requests] == ["c0"]
    assert part.status.allocation is not None
    assert [device.request for device in part.status.allocation.devices] == ["c0"]


def test_a_claim_of_other_vendors_is_to_the_agent_as_one_without_an_allocation() -> None:
    assert nvidias_part(of("hygon", "ascend310p")).status.allocation is None


def test_a_claim_without_an_allocation_is_seen_as_it_is() -> None:
    claim = a_claim(requests=[a_request(name="c0", vendor="hygon")])
    assert nvidias_part(claim) is claim
