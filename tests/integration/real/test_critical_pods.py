"""The programs start on a cluster that admits critical pods only under a matching quota."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from vgpu_api.resources import NODES, PODS
from vgpu_client.api import Api
from vgpu_client.errors import ServerError
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.installation import apply
from vgpu_local.programs import ROOT
from vgpu_local.steps import a_container, a_pod

GKES = """
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - scopeName: PriorityClass
        operator: In
        values: [system-node-critical, system-cluster-critical]
"""
"""Source: Kubernetes, "Limit Priority Class consumption by default"."""
STARTED = {"vgpu-operator", "vgpu-webhook", "vgpu-nodeagent"}


@pytest.mark.parametrize("folder", ["overlays/gate", "uninstall"])
async def test_our_pods_are_created_where_critical_classes_need_a_quota(
    folder: str, tmp_path: Path
) -> None:
    config = tmp_path / "admission.yaml"
    config.write_text(GKES)
    arguments = [f"--admission-control-config-file={config}"]
    with ControlPlane(Options(controllers=True, apiserver_args=arguments)) as plane:
        async with Api.connect(str(plane.kubeconfig)) as api:
            labels = {"kubernetes.io/os": "linux"}
            await api.create(NODES, {"metadata": {"name": "node-1", "labels": labels}})
            pod = a_pod("other", a_container(), priorityClassName="system-node-critical")
            with pytest.raises(ServerError, match="insufficient quota to match these scopes"):
                await api.create(PODS, pod)
            if folder == "uninstall":
                namespace = tmp_path / "namespace"
                namespace.mkdir()
                (namespace / "kustomization.yaml").write_text("resources: [namespace.yaml]\n")
                (namespace / "namespace.yaml").write_text(
                    "{apiVersion: v1, kind: Namespace, metadata: {name: vgpu-node}}"
                )
                apply(plane, namespace)
            apply(plane, ROOT / "manifests" / folder)
            missing = STARTED if folder != "uninstall" else {"vgpu-cleaner"}
            for _ in range(300):
                pods = (await api.list(PODS)).items
                made = {pod["metadata"]["name"] for pod in pods}
                missing = {each for each in missing if not any(n.startswith(each) for n in made)}
                if not missing:
                    return
                await asyncio.sleep(0.1)
            raise AssertionError(f"no pod of {', '.join(sorted(missing))}")
