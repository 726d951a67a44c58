"""Manifests with what the tests' node needs besides: its devices, its network and its images."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

CLUSTER = Path(__file__).parent / "cluster"
MANIFESTS = Path(__file__).parents[1] / "manifests"
_DEMO = MANIFESTS / "overlays" / "demo"
_FILES = {
    "machine.txt": CLUSTER / "overlay" / "machine.txt",
    "set-up.sh": _DEMO / "set-up.sh",
    "demo.yaml": _DEMO / "nodeagent.yaml",
    "nodeagent.yaml": CLUSTER / "overlay" / "nodeagent.yaml",
}
_FILES_OF_SCHEDULER = {
    "scheduler.yaml": CLUSTER / "overlay" / "scheduler.yaml",
    "extender.yaml": CLUSTER / "overlay" / "extender.yaml",
}
_FLAGS = ("--dra", "--resource-slices")


def write_adaptation(
    folder: Path, *, with_scheduler: bool = True, more: Sequence[dict[str, Any]] = ()
) -> None:
    """Write a kustomization that adapts the objects in its `rendered.yaml` to the node.

    Args:
        folder: The folder to write it to; the caller writes `rendered.yaml`.
        with_scheduler: The objects contain a scheduler and an extender.
        more: Patches that come last.
    """
    patches = ["demo.yaml", "nodeagent.yaml", *(_FILES_OF_SCHEDULER if with_scheduler else ())]
    for name, path in (_FILES | _FILES_OF_SCHEDULER).items():
        shutil.copy(path, folder / name)
    machine = {"name": "vgpu-machine", "namespace": "vgpu-node"}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["rendered.yaml"],
        "configMapGenerator": [{**machine, "files": ["machine.txt", "set-up.sh"]}],
        "patches": [*({"path": name} for name in patches), *more],
        "images": [
            {"name": "registry.invalid/vgpu/nodeagent", "newTag": "dev"},
            {
                "name": "registry.k8s.io/kube-scheduler",
                "newName": "registry.invalid/vgpu/kube",
                "newTag": "dev",
            },
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))


def adapted_beside_hami(kubectl: Path) -> str:
    """Return the objects of overlays/beside-hami, adapted to the node.

    Args:
        kubectl: The program.
    """
    with tempfile.TemporaryDirectory(prefix="vgpu-overlay-") as name:
        folder = Path(name).resolve()
        rendered = _kustomized(kubectl, MANIFESTS / "overlays" / "beside-hami")
        (folder / "rendered.yaml").write_text(rendered)
        write_adaptation(folder)
        return _kustomized(kubectl, folder)


def adapted_claims(kubectl: Path) -> str:
    """Return the objects of overlays/claims with ResourceSlices, adapted to the node.

    Args:
        kubectl: The program.
    """
    with tempfile.TemporaryDirectory(prefix="vgpu-overlay-") as name:
        folder = Path(name).resolve()
        overlay, above = folder / "overlay", folder / "above"
        above.mkdir()
        overlay.mkdir()
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(MANIFESTS / "overlays" / "claims", above)],
            "components": [os.path.relpath(MANIFESTS / "components" / "resource-slices", above)],
        }
        (above / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        rendered = _kustomized(kubectl, above)
        (overlay / "rendered.yaml").write_text(rendered)
        write_adaptation(overlay, with_scheduler=False, more=[_with_flags_of(rendered)])
        return _kustomized(kubectl, overlay)


def _with_flags_of(rendered: str) -> dict[str, Any]:
    """Return a patch that adds the agent's flags again, since the adaptation replaces them all."""
    (agent,) = (each for each in yaml.safe_load_all(rendered) if each["kind"] == "DaemonSet")
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    path = "/spec/template/spec/containers/0/args/-"
    flags = [each for each in container["args"] if each in _FLAGS]
    assert flags == [*_FLAGS]
    added = [{"op": "add", "path": path, "value": flag} for flag in flags]
    target = {"kind": "DaemonSet", "name": agent["metadata"]["name"]}
    return {"target": target, "patch": yaml.safe_dump(added)}


def _kustomized(kubectl: Path, folder: Path) -> str:
    command = [kubectl, "kustomize", folder]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
