"""The versions of Kubernetes that a test may request, and how each one is built."""

import re
from pathlib import Path

import pytest

from vgpu_local.control_plane import MINOR_VERSIONS, ControlPlane, MinorVersion, Options
from vgpu_local.programs import ROOT

KUBE = ROOT / "tests" / "cluster" / "kube"
KUBERNETES = re.compile(r"^\tk8s\.io/kubernetes v1\.(\d+)\.(\d+)$", re.MULTILINE)
STAGED = re.compile(r"^\tk8s\.io/\S+ => k8s\.io/\S+ v0\.(\d+)\.(\d+)$", re.MULTILINE)


def test_each_version_is_pinned_to_one_release_of_all_that_kubernetes_consists_of() -> None:
    releases = []
    for pins in KUBE.glob("*.mod"):
        text = pins.read_text()
        [release] = set(KUBERNETES.findall(text))
        assert set(STAGED.findall(text)) == {release}, pins
        releases.append(f"1.{release[0]}")

    assert sorted(releases) == sorted(MINOR_VERSIONS)


def test_no_two_versions_share_their_programs() -> None:
    folders = {ControlPlane(Options(version=version)).programs for version in MINOR_VERSIONS}

    assert len(folders) == len(MINOR_VERSIONS)


@pytest.mark.parametrize("version", MINOR_VERSIONS)
def test_a_version_that_is_not_built_names_a_target_that_builds_it(
    version: MinorVersion, tmp_path: Path
) -> None:
    plane = ControlPlane(Options(version=version))
    plane.programs = tmp_path / "not-built"

    with pytest.raises(RuntimeError, match=f"Kubernetes {re.escape(version)} ") as refused:
        plane.start()

    target = str(refused.value).rpartition("make ")[2].rstrip("`")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
