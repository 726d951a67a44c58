"""kustomize, offline: every overlay, example and component builds, also together."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"
COMPONENTS = sorted(folder.name for folder in (MANIFESTS / "components").iterdir())


def built(folder: Path) -> list[Any]:
    """The objects of a kustomization; kustomize's own words where it has none."""
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return list(yaml.safe_load_all(done.stdout))


def with_components(folder: Path, *components: str) -> list[Any]:
    """The default overlay and these components on top of it."""
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(MANIFESTS / "overlays" / "default", folder)],
        "components": [os.path.relpath(MANIFESTS / "components" / c, folder) for c in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return built(folder)


@pytest.mark.parametrize(
    "overlay", ["overlays/default", "overlays/demo", "examples/main-scheduler"]
)
def test_an_overlay_builds(overlay: str) -> None:
    assert built(MANIFESTS / overlay)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_builds_and_changes_something(component: str, tmp_path: Path) -> None:
    assert with_components(tmp_path, component) != built(MANIFESTS / "overlays" / "default")


def test_all_components_build_together(tmp_path: Path) -> None:
    assert with_components(tmp_path, *COMPONENTS)


def test_with_cert_manager_no_process_of_ours_reads_secrets_or_writes_webhooks(
    tmp_path: Path,
) -> None:
    objects = with_components(tmp_path, "cert-manager")
    rules = [
        rule
        for found in objects
        if found["kind"] in ("Role", "ClusterRole")
        and found["metadata"]["name"] in ("vgpu-operator", "vgpu-webhook")
        for rule in found["rules"]
    ]
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert "pods" in resources
    assert not resources & {"secrets", "mutatingwebhookconfigurations"}
    assert not [found for found in objects if found["kind"] == "Secret"]
