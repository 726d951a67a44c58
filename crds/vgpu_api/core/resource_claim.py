"""The fields of a ResourceClaim (`resource.k8s.io/v1`) that matter in Claims mode."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from vgpu_api.dra import CLASSES, DRIVER, SCHEDULER_CLASS
from vgpu_api.empties import no_entries, no_items
from vgpu_api.v1alpha1.base import ApiModel, Metadata, Word


class CapacityRequirements(ApiModel):
    """The amounts that a request asks for of each device."""

    requests: dict[str, str | int] = Field(default_factory=no_entries)


class ExactRequest(ApiModel):
    """A request for devices of one class."""

    device_class_name: Word = ""
    selectors: list[dict[str, Any]] = Field(default_factory=no_items)
    allocation_mode: Word = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[dict[str, Any]] = Field(default_factory=no_items)
    capacity: CapacityRequirements | None = None


class ClaimedRequest(ApiModel):
    """One request of a claim; either `exactly` or `firstAvailable` is set."""

    name: Word = ""
    exactly: ExactRequest | None = None
    first_available: list[ExactRequest] = Field(default_factory=no_items)

    @property
    def classes(self) -> frozenset[str]:
        """Return the device classes that the request names."""
        named = [*self.first_available, *([] if self.exactly is None else [self.exactly])]
        return frozenset(each.device_class_name for each in named)


class DeviceConstraint(ApiModel):
    """A rule for the devices of several requests together; no requests means all of them."""

    requests: list[str] = Field(default_factory=no_items)
    match_attribute: str = ""
    distinct_attribute: str = ""


class DeviceRequests(ApiModel):
    """The devices that a claim requests."""

    requests: list[ClaimedRequest] = Field(default_factory=no_items)
    constraints: list[DeviceConstraint] = Field(default_factory=no_items)
    config: list[dict[str, Any]] = Field(default_factory=no_items)


class ResourceClaimSpec(ApiModel):
    """The spec of a claim or of a claim template."""

    devices: DeviceRequests = Field(default_factory=DeviceRequests)


class DeviceResult(ApiModel):
    """One allocated device."""

    request: Word = ""
    driver: Word = ""
    pool: Word = ""
    device: Word = ""
    share_id: str = Field(default="", alias="shareID")
    consumed_capacity: dict[str, str | int] = Field(default_factory=no_entries)


class DeviceAllocation(ApiModel):
    """The allocated devices."""

    results: list[DeviceResult] = Field(default_factory=no_items)


class DeviceAllocationResult(ApiModel):
    """The result of an allocation."""

    devices: DeviceAllocation = Field(default_factory=DeviceAllocation)


class ClaimConsumer(ApiModel):
    """An object that may use the claim, usually a pod."""

    resource: Word = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(ApiModel):
    """The status of a claim."""

    allocation: DeviceAllocationResult | None = None
    reserved_for: list[ClaimConsumer] = Field(default_factory=no_items)
    devices: list[dict[str, Any]] = Field(default_factory=no_items)

    @property
    def is_empty(self) -> bool:
        """True if nothing has been written to the status."""
        return self.allocation is None and not self.reserved_for and not self.devices


class ResourceClaim(ApiModel):
    """A claim for devices, which kube-scheduler or, for our classes, the operator allocates."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: ResourceClaimSpec = Field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = Field(default_factory=lambda: ResourceClaimStatus())

    @property
    def results(self) -> list[DeviceResult]:
        """Return the allocated devices; none if the claim is not allocated."""
        allocation = self.status.allocation
        return [] if allocation is None else allocation.devices.results

    @property
    def is_ours(self) -> bool:
        """True if it asks for a class of ours, or has a device of our driver."""
        asks = any(not CLASSES.isdisjoint(each.classes) for each in self.spec.devices.requests)
        has = any(result.driver == DRIVER for result in self.results)
        return asks or has or self.is_of_scheduler

    @property
    def is_of_scheduler(self) -> bool:
        """True if it asks for devices that kube-scheduler allocates, and the operator does not."""
        return any(SCHEDULER_CLASS in each.classes for each in self.spec.devices.requests)
