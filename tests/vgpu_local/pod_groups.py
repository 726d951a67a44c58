"""Kubernetes' own pod groups: the control planes that serve them, and the objects of a gang.

A group is served behind feature gates whose names, like the version of its API, differ between
the versions of Kubernetes. A test in `tests/integration/real` that takes the fixture `pod_groups`
runs on each of them::

    @pytest.fixture(scope="module")
    def cluster(pod_groups: PodGroups) -> Iterator[LocalCluster]:
        nodes = [t4_node("n1"), t4_node("n2")]
        with real_cluster(nodes, foundation=RealControlPlane(pod_groups.options)) as running:
            yield running

    def test_a_gang(cluster: LocalCluster, pod_groups: PodGroups) -> None:
        cluster.run(cluster.api.create(pod_groups.resource, pod_groups.gang("g", least=2)))
        for name in ("g-0", "g-1"):
            create(cluster, a_pod(name, a_container(limits=A_DEVICE), **in_group("g")))

A test that needs another version but no groups takes the fixture `kubernetes_version` and passes
`Options(version=kubernetes_version)`; `pytest -k 1.37` selects the tests of one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vgpu_api.resources import Resource
from vgpu_client.transport import Object
from vgpu_local.control_plane import MinorVersion, Options

_GROUP = "scheduling.k8s.io"


@dataclass(frozen=True, slots=True)
class PodGroups:
    """Pod groups as one version of Kubernetes serves them.

    Attributes:
        version: The minor version of Kubernetes.
        api_version: The version of their API.
        feature_gates: The gates that turn them on.
        scheduled: The type of the condition that is True once the group was scheduled.
    """

    version: MinorVersion
    api_version: str
    feature_gates: Mapping[str, bool]
    scheduled: str

    @property
    def options(self) -> Options:
        """Return the options of a control plane that serves groups and schedules them."""
        return Options(
            version=self.version,
            feature_gates=self.feature_gates,
            api_groups=(f"{_GROUP}/{self.api_version}",),
        )

    @property
    def resource(self) -> Resource:
        """Return the kind PodGroup."""
        return Resource(_GROUP, self.api_version, "podgroups", "PodGroup", namespaced=True)

    def gang(self, name: str, *, least: int, **spec: Any) -> Object:
        """Return a group of which at least this many pods start together."""
        return {
            "apiVersion": f"{_GROUP}/{self.api_version}",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, **spec},
        }

    def is_scheduled(self, group: Object) -> bool:
        """Return True if kube-scheduler reports that the group was scheduled."""
        conditions = (group.get("status") or {}).get("conditions") or ()
        return any(c["type"] == self.scheduled and c["status"] == "True" for c in conditions)


def in_group(name: str) -> Object:
    """Return the fields of a pod's spec that make it a member of a group."""
    return {"schedulingGroup": {"podGroupName": name}}


_ALPHA = PodGroups(
    version="1.36",
    api_version="v1alpha2",
    feature_gates={"GenericWorkload": True, "GangScheduling": True},
    scheduled="PodGroupScheduled",
)
_BETA = PodGroups(  # the gate of gangs is merged into the one of groups
    version="1.37",
    api_version="v1beta1",
    feature_gates={"GenericWorkload": True},
    scheduled="PodGroupInitiallyScheduled",
)
BY_VERSION: Mapping[MinorVersion, PodGroups] = {each.version: each for each in (_ALPHA, _BETA)}
