"""A control plane has the version, the feature gates and the API groups that a test asks for."""

from __future__ import annotations

import json

from vgpu_local.control_plane import ControlPlane, MinorVersion
from vgpu_local.pod_groups import PodGroups


def test_a_control_plane_is_what_its_options_say(
    pod_groups: PodGroups, kubernetes_version: MinorVersion
) -> None:
    with ControlPlane(pod_groups.options) as plane:
        version = json.loads(plane.get("/version", timeout_s=10))
        served = json.loads(plane.get("/apis/scheduling.k8s.io", timeout_s=10))
        metrics = plane.get("/metrics", timeout_s=10).decode()

    assert f"{version['major']}.{version['minor']}" == kubernetes_version
    assert pod_groups.api_version in {each["version"] for each in served["versions"]}
    gates = {line for line in metrics.splitlines() if line.startswith("kubernetes_feature_enabled")}
    for name in pod_groups.feature_gates:
        assert any(f'name="{name}"' in line and line.endswith(" 1") for line in gates), name
