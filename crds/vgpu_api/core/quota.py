"""A ResourceQuota, as far as it limits devices."""

from __future__ import annotations

from pydantic import Field

from vgpu_api.empties import no_entries
from vgpu_api.v1alpha1.base import ApiModel, Metadata


class ResourceQuotaSpec(ApiModel):
    """What of a quota's spec we read."""

    hard: dict[str, str | int] = Field(default_factory=no_entries)


class ResourceQuota(ApiModel):
    """A quota of a namespace."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: ResourceQuotaSpec = Field(default_factory=ResourceQuotaSpec)
