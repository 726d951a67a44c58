"""Reads pods' GPU requests in any dialect and converts them to one form. Pure: no I/O.

Each dialect is a module, and `reading` has a table of them. A new dialect is a module and a row.
"""

from vgpu_operator.dialects.ack import bind_records as ack_bind_records
from vgpu_operator.dialects.hami_phases import bind_records
from vgpu_operator.dialects.hami_views import binding_annotations
from vgpu_operator.dialects.native import containers_of_claim, slots_added
from vgpu_operator.dialects.pod_demand import NamedClaim, PodDemand
from vgpu_operator.dialects.reading import follows_labels, read

__all__ = [
    "NamedClaim",
    "PodDemand",
    "ack_bind_records",
    "bind_records",
    "binding_annotations",
    "containers_of_claim",
    "follows_labels",
    "read",
    "slots_added",
]
