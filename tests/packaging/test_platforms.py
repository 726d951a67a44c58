"""The settings on the page about platforms fit the manifests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from manual import shell
from manual.words import ROOT
from release.chart import COMPONENTS, kustomized

pytestmark = pytest.mark.tools

PAGE = (ROOT / "docs" / "operations" / "platforms.md").read_text()
PLATFORMS = ("EKS", "GKE", "AKS", "OpenShift", "k3s", "RKE2", "MicroK8s", "k0s", "Talos")
PLATFORMS += ("Bottlerocket",)


def rows() -> dict[str, list[str]]:
    """Return the cells of each row of the table of platforms by the platform's first word."""
    found = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 6:
            found[cells[0].split()[0]] = cells
    return found


def agent() -> Any:
    return kustomized(())["apps/v1", "DaemonSet", "vgpu-node", "vgpu-nodeagent"]


def test_each_platform_has_a_row_with_every_cell():
    found = rows()
    del found["Platform"]
    assert found.keys() == set(PLATFORMS)
    assert all(all(cells) for cells in found.values())


def test_openshifts_bindings_name_every_account_that_runs_pods_and_no_other():
    component = ROOT / "manifests" / "components" / "openshift" / "constraints.yaml"
    documents = list(yaml.safe_load_all(component.read_text()))
    bound = {
        (subject["namespace"], subject["name"]): document["roleRef"]["name"].rpartition(":")[2]
        for document in documents
        for subject in document["subjects"]
    }
    assert all(
        d["metadata"]["namespace"] == s["namespace"] for d in documents for s in d["subjects"]
    )
    wanted = {}
    for (_, kind, namespace, _), obj in kustomized(COMPONENTS).items():
        if kind in ("Deployment", "DaemonSet"):
            pod = obj["spec"]["template"]["spec"]
            is_privileged = any(
                container.get("securityContext", {}).get("privileged")
                for container in pod["containers"]
            )
            scc = "privileged" if is_privileged else "nonroot-v2"
            wanted[namespace, pod["serviceAccountName"]] = scc
    assert bound == wanted


def test_the_patch_for_cdi_specs_moves_a_volume_that_the_agent_has():
    (patch,) = (
        document["patches"][0]["patch"]
        for block in shell.blocks(PAGE, "yaml")
        for document in yaml.safe_load_all(block)
        if "patches" in document
    )
    (volume,) = yaml.safe_load(patch)["spec"]["template"]["spec"]["volumes"]
    volumes = agent()["spec"]["template"]["spec"]["volumes"]
    (ours,) = (each for each in volumes if each["name"] == volume["name"])
    assert ours["hostPath"]["path"] == "/var/run/cdi"
    assert Path(volume["hostPath"]["path"]).is_absolute()


def test_the_driver_folders_that_need_no_setting_are_those_the_agent_searches():
    arguments = agent()["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--driver-root=/run/nvidia/driver" in arguments
    assert "below `/run/nvidia/driver`" in PAGE.replace("\n", " ")
    source = ROOT / "nodeagent" / "vgpu_nodeagent" / "enforcement" / "driver_files.py"
    (folder,) = re.findall(r"driver is below `/(home/[\w/]+)`, where the agent looks", PAGE)
    assert f'"{folder}/lib64"' in source.read_text()
