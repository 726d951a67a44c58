"""Helm renders the chart to the objects that kustomize builds, with each component and all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from release.chart import (
    COMPONENTS,
    by_key,
    kustomized,
    scheduler_objects,
    value_of,
    write,
)
from vgpu_local.programs import ROOT

BUILD = ROOT / "tests" / "cluster" / "helm" / "build.sh"


@pytest.fixture(scope="session")
def helm() -> str:
    """Helm, built once from its Go module."""
    done = subprocess.run(["bash", str(BUILD)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chart") / "vgpu"
    write(folder, "1.2.3")
    return folder


def rendered(helm: str, chart: Path, *arguments: str):  # type: ignore[no-untyped-def]
    done = subprocess.run(
        [
            helm,
            "template",
            "vgpu",
            str(chart),
            "--include-crds",
            "--kube-version=1.36.0",
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return by_key(yaml.safe_load_all(done.stdout))


@pytest.mark.timeout(900)  # the first build of Helm
def test_the_chart_is_one_that_helm_takes(helm: str, chart: Path):
    done = subprocess.run(
        [helm, "lint", "--strict", str(chart)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("components", [(), *((c,) for c in COMPONENTS), COMPONENTS], ids="+".join)
def test_helm_and_kustomize_make_the_same_objects(
    helm: str, chart: Path, components: tuple[str, ...]
):
    flags = [f"--set=components.{value_of(component)}=true" for component in components]
    ours, theirs = kustomized(components), rendered(helm, chart, *flags)
    assert theirs.keys() == ours.keys()
    for key in ours:
        assert theirs[key] == ours[key], key


def test_without_a_scheduler_of_its_own_everything_else_is_the_same(helm: str, chart: Path):
    theirs = rendered(helm, chart, "--set=scheduler.enabled=false")
    ours = {key: obj for key, obj in kustomized(()).items() if key not in scheduler_objects()}
    assert ours.keys() < kustomized(()).keys()
    assert theirs == ours


def test_images_and_the_configuration_are_values(helm: str, chart: Path, tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text("nvidia: {deviceSplitCount: 4}\n")
    theirs = rendered(
        helm, chart, "--set=images.operator=registry.example/op:7", f"--set-file=config={config}"
    )
    names = {
        key[3] for key in theirs if key[1] == "ConfigMap" and key[3].startswith("vgpu-config-")
    }
    (name,) = names
    assert name not in {key[3] for key in kustomized(())}
    operator = theirs["apps/v1", "Deployment", "vgpu-system", "vgpu-operator"]
    pod = operator["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/op:7"
    (volume,) = [v for v in pod["volumes"] if v["name"] == "config"]
    assert volume["configMap"]["name"] == name
    stored = theirs["v1", "ConfigMap", "vgpu-node", name]["data"]["config.yaml"]
    assert stored == config.read_text()
