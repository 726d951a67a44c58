"""Alibaba's annotation about NUMA nodes, which works in every dialect.

`scheduling.alibabacloud.com/numa-topology-spec` is a JSON object. ACK's own example has a trailing
comma, so trailing commas are accepted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from vgpu_api import names
from vgpu_api.core import Pod
from vgpu_api.errors import BadInput
from vgpu_api.v1alpha1.vgpuclaim import MAX_PATTERN, NumaPolicy
from vgpu_operator.dialects.hami_annotations import annotation_field

NUMA_POLICIES: dict[str, NumaPolicy] = {
    "SingleNUMANode": "Require",
    "Restricted": "Prefer",
    "BestEffort": "Prefer",
}
"""Restricted asks for the smallest set of NUMA nodes; Prefer uses one node where that is enough."""
EXPECTED = (
    "a JSON object with numaTopologyPolicy: one of "
    f"{', '.join(NUMA_POLICIES)}; and singleNUMANodeExclusive: Preferred or Required"
)
_POLICY, _EXCLUSIVE = "numaTopologyPolicy", "singleNUMANodeExclusive"
_MAX_SPEC = 4096
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")


@dataclass(frozen=True, slots=True)
class NumaSpec:
    """The annotation of one pod.

    `exclusive` is True if no other pod may use the NUMA node. `unknown` lists keys that have no
    meaning.
    """

    policy: NumaPolicy
    exclusive: Literal["Preferred", "Required"]
    unknown: tuple[str, ...] = ()


def numa_spec(pod: Pod) -> NumaSpec | None:
    """Return the pod's annotation, or None if it is missing.

    Raises:
        BadInput: The value is not such an object.
    """
    written = pod.metadata.annotations.get(names.ACK_NUMA_SPEC, "").strip()
    if not written:
        return None
    error = BadInput(
        field=annotation_field(names.ACK_NUMA_SPEC),
        value=written[:MAX_PATTERN],
        expected=EXPECTED,
    )
    if len(written) > _MAX_SPEC:
        raise error
    try:
        spec = json.loads(_TRAILING_COMMA.sub("", written))
    except (ValueError, RecursionError):
        raise error from None
    if not isinstance(spec, dict):
        raise error
    word = spec.get(_POLICY)
    policy = NUMA_POLICIES.get(word) if isinstance(word, str) else None
    exclusive = spec.get(_EXCLUSIVE, "Preferred")
    if policy is None or exclusive not in ("Preferred", "Required"):
        raise error
    unknown = tuple(sorted(spec.keys() - {_POLICY, _EXCLUSIVE}))
    return NumaSpec(policy=policy, exclusive=exclusive, unknown=unknown)
