"""Filters nodes for a pod by everything except devices, as kube-scheduler does.

kube-scheduler applies its filters before it calls an extender. They are repeated here where their
result is not known yet: taints, selectors and node affinity for every reservation, so that the pod
can go to the reserved node; in Gate mode also resources, host ports, pod affinity, topology spread
and volumes, because a pod's node is decided before kube-scheduler sees the pod.

| Module | The plugins of kube-scheduler that it corresponds to |
|---|---|
| `host_filters` | all of them together |
| `node_rules` | NodeAffinity, TaintToleration, NodeUnschedulable; it also counts free CPU |
| `pod_affinity` | InterPodAffinity, PodTopologySpread |
| `host_demand` | values: what a pod asks of its node besides devices |
| `resources_fit` | NodeResourcesFit, NodePorts |
| `volume_binding` | VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits |
| `storage_objects` | the volumes, claims and classes that `volume_binding` needs |
"""

from typing import TYPE_CHECKING

from vgpu_api.lazy import lazily

if TYPE_CHECKING:
    from vgpu_operator.node_filter.host_demand import HostDemand
    from vgpu_operator.node_filter.node_rules import NodeFilters, NodeRules
    from vgpu_operator.node_filter.storage_objects import StorageObject
else:
    __getattr__ = lazily(
        __name__,
        {
            "HostDemand": "host_demand",
            "NodeFilters": "node_rules",
            "NodeRules": "node_rules",
            "StorageObject": "storage_objects",
        },
    )

__all__ = ["HostDemand", "NodeFilters", "NodeRules", "StorageObject"]
