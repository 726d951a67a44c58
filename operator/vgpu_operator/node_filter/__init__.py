"""Which nodes a pod may use, its devices apart: what kube-scheduler checks, checked here.

kube-scheduler judges before it asks an extender. Its rules are applied here where its answer is not
known yet: taints, selectors and node affinity for every tentative place, so that the pod can go
there; in mode Gate also resources, host ports, pod affinity, topology spread and volumes, because a
pod's node is decided before kube-scheduler sees the pod.

| Module | What it judges, in kube-scheduler's words |
|---|---|
| `host_filters` | all of them together |
| `node_rules` | NodeAffinity, TaintToleration, NodeUnschedulable; it also keeps what CPU is free |
| `pod_affinity` | InterPodAffinity, PodTopologySpread |
| `resources_fit` | NodeResourcesFit, NodePorts |
| `volume_binding` | VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits |
| `storage_objects` | the volumes, claims and classes that `volume_binding` looks at |
"""

from vgpu_operator.node_filter.node_rules import NodeFilters, NodeRules
from vgpu_operator.node_filter.resources_fit import HostDemand
from vgpu_operator.node_filter.storage_objects import StorageObject

__all__ = ["HostDemand", "NodeFilters", "NodeRules", "StorageObject"]
