"""Manifests that Argo CD and Flux apply again and again show no drift from our writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.names import FIELD_MANAGER_OPERATOR
from vgpu_local.control_plane import ControlPlane, Options
from vgpu_local.programs import ROOT

AUTOMATION = ROOT / "examples" / "automation"
HOOKS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
BUNDLE = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"

pytestmark = pytest.mark.timeout(300)


def source(example: str) -> Path:
    """Return the folder that an example applies."""
    for document in yaml.safe_load_all((AUTOMATION / example).read_text()):
        spec = document["spec"]
        path = spec.get("path") or spec.get("source", {}).get("path")
        if path:
            return ROOT / path
    raise AssertionError(f"{example} names no path")


class Kubectl:
    """kubectl as an administrator."""

    def __init__(self, plane: ControlPlane) -> None:
        self._command = [plane.programs / "kubectl", "--kubeconfig", plane.kubeconfig]

    def __call__(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    with ControlPlane(Options()) as plane:
        yield Kubectl(plane)


def installed(kubectl: Kubectl, folder: Path) -> dict[tuple[str, ...], Any]:
    """Return the objects without the fields that the API server counts and records itself."""
    found = {}
    for each in json.loads(kubectl("get", "-k", folder, "-o", "json"))["items"]:
        metadata = each["metadata"]
        for key in ("resourceVersion", "managedFields"):
            metadata.pop(key, None)
        each.pop("status", None)
        key = each["apiVersion"], each["kind"], metadata.get("namespace", ""), metadata["name"]
        found[key] = each
    return found


def trust_is_written(kubectl: Kubectl) -> None:
    """Wait until the operator has written the CA bundles of its certificates."""
    for kind in HOOKS:
        count = len(json.loads(kubectl("get", kind, "vgpu", "-o", "json"))["webhooks"])
        patch = [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": BUNDLE}
            for number in range(count)
        ]
        manager = f"--field-manager={FIELD_MANAGER_OPERATOR}"
        kubectl("patch", kind, "vgpu", "--type=json", "-p", json.dumps(patch), manager)


@pytest.mark.parametrize(
    ("example", "manager"),
    [("argo-cd.yaml", "argocd-controller"), ("flux.yaml", "kustomize-controller")],
)
def test_what_is_applied_again_changes_nothing_and_has_no_difference(
    kubectl: Kubectl, example: str, manager: str
) -> None:
    folder = source(example)
    apply = ("--server-side", "--force-conflicts", f"--field-manager={manager}", "-k", folder)
    kubectl("apply", *apply)
    trust_is_written(kubectl)
    first = installed(kubectl, folder)
    assert kubectl("diff", *apply) == ""
    kubectl("apply", *apply)
    assert installed(kubectl, folder) == first
    hooks = [each for key, each in first.items() if key[1].endswith("WebhookConfiguration")]
    bundles = [hook["clientConfig"].get("caBundle") for each in hooks for hook in each["webhooks"]]
    assert set(bundles) == {BUNDLE}


def test_what_somebody_changes_by_hand_is_drift(kubectl: Kubectl) -> None:
    """This shows that the comparison can find a difference."""
    folder = source("flux.yaml")
    manager = "--field-manager=kustomize-controller"
    kubectl("apply", "--server-side", "--force-conflicts", manager, "-k", folder)
    patch = json.dumps({"spec": {"replicas": 7}})
    kubectl("patch", "deployment", "vgpu-operator", "-n", "vgpu-system", "-p", patch)
    with pytest.raises(AssertionError, match="replicas: 7"):
        kubectl("diff", "--server-side", "--force-conflicts", manager, "-k", folder)
