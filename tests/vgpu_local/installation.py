"""Applies manifests/ to a control plane whose cluster is this machine.

Two things must differ from a real installation: Services lead to this machine, and no pod is
started from an image. They are in a kustomize overlay, so that everything else is what an
administrator installs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from vgpu_api.resources import CONFIG_MAPS
from vgpu_client.api import Api
from vgpu_client.errors import Invalid
from vgpu_client.transport import Object
from vgpu_local.control_plane import ControlPlane
from vgpu_local.programs import ROOT
from vgpu_operator.cli.uninstall import BINDINGS, POLICIES


def install(
    plane: ControlPlane,
    folder: Path,
    *,
    webhook_port: int,
    overlay_name: str = "default",
    components: Sequence[str] = (),
) -> None:
    """Apply an overlay of manifests/, adapted to this machine.

    Args:
        plane: The control plane to install on.
        folder: The folder to write the adapting overlay to.
        webhook_port: The port of the webhooks on this machine.
        overlay_name: The overlay in manifests/overlays.
        components: The components in manifests/components to add.

    Raises:
        AssertionError: The API server refused something or warned; with its messages.
    """
    overlay = folder / "overlay"
    overlay.mkdir()
    base = os.path.relpath(ROOT / "manifests" / "overlays" / overlay_name, overlay)
    beside = [
        os.path.relpath(ROOT / "manifests" / "components" / name, overlay) for name in components
    ]
    configurations = ROOT / "manifests" / "base" / "webhook" / "configurations.yaml"
    hooks = [
        (found["kind"], len(found["webhooks"]))
        for found in yaml.safe_load_all(configurations.read_text())
    ]
    added = ROOT / "manifests" / "overlays" / overlay_name / "hooks.yaml"
    if added.exists():
        kind, count = hooks[0]
        hooks[0] = kind, count + len(yaml.safe_load(added.read_text()))
    patches: list[Object] = [
        {
            "target": {"kind": kind, "name": name},
            "patch": yaml.safe_dump(
                {
                    "$patch": "delete",
                    "apiVersion": "apps/v1",
                    "kind": kind,
                    "metadata": {"name": name},
                }
            ),
        }
        for kind, name in (
            ("Deployment", "vgpu-operator"),
            ("Deployment", "vgpu-webhook"),
            ("Deployment", "vgpu-scheduler"),
            ("DaemonSet", "vgpu-nodeagent"),
            *([("Deployment", "vgpu-web")] if "web" in components else []),
        )
    ]
    # The API server looks the Service up and then comes here; whom it expects stays as it is.
    spec = {"type": "ExternalName", "externalName": "localhost"}
    patches.append(
        {
            "target": {"kind": "Service", "name": "vgpu-webhook"},
            "patch": yaml.safe_dump([{"op": "replace", "path": "/spec", "value": spec}]),
        }
    )
    patches += [
        {
            "target": {"kind": kind, "name": "vgpu"},
            "patch": yaml.safe_dump(
                [
                    {
                        "op": "add",
                        "path": f"/webhooks/{index}/clientConfig/service/port",
                        "value": webhook_port,
                    }
                    for index in range(count)
                ]
            ),
        }
        for kind, count in hooks
    ]
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [base],
        "components": beside,
        "patches": patches,
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(document))
    apply(plane, overlay)


def apply(plane: ControlPlane, overlay: Path) -> None:
    """Run `kubectl apply -k`, and fail on any warning.

    Raises:
        AssertionError: The API server refused something or warned; with its messages.
    """
    command = ["apply", "-k", str(overlay), "--validate=strict"]
    done = subprocess.run(
        [plane.programs / "kubectl", "--kubeconfig", plane.kubeconfig, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


async def policies_in_force(admin: Api) -> None:
    """Wait until every admission policy that was written before takes effect.

    The API server reads policies some seconds after they are written, and not all at once. It
    reads them in the order of writing, so a last one, which is removed again, stands for all.

    Args:
        admin: A client of an administrator.

    Raises:
        AssertionError: The last policy refuses nothing for ten seconds.
    """
    name = {"name": "last-of-all"}
    configmaps = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
    }
    rule = {"resourceRules": [configmaps | {"resourceNames": [name["name"]]}]}
    refuses = {"matchConstraints": rule, "validations": [{"expression": "false"}]}
    binding = {"policyName": name["name"], "validationActions": ["Deny"]}
    await admin.create(POLICIES, {"metadata": name, "spec": refuses})
    await admin.create(BINDINGS, {"metadata": name, "spec": binding})
    probed = {"metadata": name | {"namespace": "default"}}
    for _ in range(100):
        try:
            await admin.create(CONFIG_MAPS, probed)
        except Invalid:
            break
        await admin.delete(CONFIG_MAPS, name["name"], namespace="default")
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("a policy that refuses everything has refused nothing for 10 s")
    for resource in (BINDINGS, POLICIES):
        await admin.delete(resource, name["name"])
