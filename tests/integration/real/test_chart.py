"""Helm renders the chart to the same objects as kustomize, with each component and with all."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.chart import (
    COMPONENTS,
    MODES,
    Objects,
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


def template(helm: str, chart: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "vgpu", str(chart), "--include-crds"]
    if not any(argument.startswith("--kube-version") for argument in arguments):
        command.append("--kube-version=1.36.3")
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def rendered(helm: str, chart: Path, *arguments: str):  # type: ignore[no-untyped-def]
    done = template(helm, chart, *arguments)
    assert done.returncode == 0, done.stderr
    return by_key(yaml.safe_load_all(done.stdout))


def notes(helm: str, chart: Path, tmp_path: Path, *arguments: str) -> str:
    """Return the text that Helm prints after an installation; `helm template` leaves it out."""
    copy = tmp_path / "vgpu"
    shutil.copytree(chart, copy)
    shutil.move(copy / "templates" / "NOTES.txt", copy / "files" / "NOTES.txt")
    shown = copy / "templates" / "shown.yaml"
    shown.write_text('notes: {{ tpl (.Files.Get "files/NOTES.txt") . | toJson }}\n')
    done = template(helm, copy, "--show-only=templates/shown.yaml", *arguments)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["notes"])


@pytest.mark.timeout(900)  # building Helm for the first time takes long
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


COMPATIBLE = tuple(c for c in COMPONENTS if c not in ("beside-hami", "resource-claims"))


@pytest.mark.parametrize("components", [(), COMPATIBLE], ids=["alone", "all components"])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "Extender"])
def test_a_mode_makes_the_objects_of_its_overlay(
    helm: str, chart: Path, mode: str, components: tuple[str, ...]
):
    flags = [f"--set=components.{value_of(component)}=true" for component in components]
    ours = kustomized(components, mode)
    theirs = rendered(helm, chart, f"--set=mode={mode}", *flags)
    assert theirs.keys() == ours.keys()
    for key in ours:
        assert theirs[key] == ours[key], key


@pytest.mark.parametrize(
    ("version", "scheduler"),
    [
        ("1.31.4", "v1.31.4"),
        ("1.31.9-eks-5d4a308", "v1.31.9"),
        ("1.34.1-gke.1829001", "v1.34.1"),
        ("1.34.3+k3s1", "v1.34.3"),
        ("1.36.0", "v1.36.0"),
        ("1.37.0-beta.1", "v1.37.0"),
    ],
)
def test_the_scheduler_and_the_agents_rights_follow_the_clusters_version(
    helm: str, chart: Path, version: str, scheduler: str
):
    theirs = rendered(helm, chart, f"--kube-version={version}")
    is_old = version < "1.36"
    ours = kustomized(("agents-read-all-pods",) if is_old else ())
    assert theirs.keys() == ours.keys()
    different = {key for key in ours if theirs[key] != ours[key]}
    place = ("apps/v1", "Deployment", "vgpu-system", "vgpu-scheduler")
    assert different <= {place}
    (container,) = theirs[place]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.k8s.io/kube-scheduler:{scheduler}"


def pods(objects: Objects) -> dict[str, Any]:
    return {
        key[3].removeprefix("vgpu-"): obj["spec"]["template"]["spec"]
        for key, obj in objects.items()
        if key[1] in ("Deployment", "DaemonSet")
    }


def test_every_pod_has_what_the_values_give_its_program_and_no_other_has_it(
    helm: str, chart: Path, tmp_path: Path
):
    values = {
        "imagePullSecrets": [{"name": "registry"}],
        "components": {"web": True},
        "operator": {"replicas": 3, "nodeSelector": {"zone": "a"}},
        "webhook": {"priorityClassName": "ours"},
        "web": {"priorityClassName": "mine", "tolerations": [{"operator": "Exists"}]},
        "scheduler": {"resources": {"limits": {"memory": "1Gi"}}},
        "nodeagent": {
            "driverRoots": ["/opt/driver"],
            "nodeSelector": {"accelerator": "nvidia"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    changed = rendered(helm, chart, f"--values={tmp_path / 'values.yaml'}")
    operator = changed["apps/v1", "Deployment", "vgpu-system", "vgpu-operator"]
    assert operator["spec"]["replicas"] == 3
    now, before = pods(changed), pods(kustomized(("web",)))
    assert now.keys() == {"operator", "webhook", "scheduler", "web", "nodeagent"}
    assert all(pod["imagePullSecrets"] == [{"name": "registry"}] for pod in now.values())
    assert now["operator"]["nodeSelector"] == {"zone": "a"}
    assert now["webhook"]["priorityClassName"] == "ours"
    assert now["web"]["priorityClassName"] == "mine"
    assert now["web"]["tolerations"] == [{"operator": "Exists"}]
    requests = before["scheduler"]["containers"][0]["resources"]["requests"]
    assert now["scheduler"]["containers"][0]["resources"] == {
        "limits": {"memory": "1Gi"},
        "requests": requests,
    }
    agent = now["nodeagent"]
    assert agent["nodeSelector"] == {"kubernetes.io/os": "linux", "accelerator": "nvidia"}
    assert agent["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    roots = [a for a in agent["containers"][0]["args"] if a.startswith("--driver-root=")]
    assert roots == ["--driver-root=/opt/driver"]
    for name, field in (("webhook", "nodeSelector"), ("operator", "tolerations")):
        assert now[name].get(field) == before[name].get(field)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--set=mode=Claims", "--kube-version=1.35.2"), "needs Kubernetes 1.36 or later"),
        (("--set=mode=Gate", "--set=components.besideHami=true"), "besideHami needs mode Extender"),
        (
            ("--set=mode=Gate", "--set=config=nvidia: {deviceSplitCount: 4}"),
            "scheduling.mode is Extender, and the chart's mode is Gate",
        ),
    ],
)
def test_values_that_contradict_each_other_or_the_cluster_are_refused(
    helm: str, chart: Path, flags: tuple[str, ...], says: str
):
    done = template(helm, chart, *flags)
    assert done.returncode != 0
    assert says in done.stderr


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


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--set=kubelet.root=/data", "root"),
        ("--set=components.webpage=true", "webpage"),
        ("--set=image.operator=registry.example/op:7", "image"),
        ("--set=operator.replica=3", "replica"),
        ("--set=operator.replicas=0", "replicas"),
        ("--set=mode=Extend", "mode"),
        ("--set=nodeagent.resources.limit.cpu=1", "limit"),
        ("--set=nodeagent.tolerations[0].name=gpu", "name"),
        ("--set=nodeagent.driverRoots[0]=opt", "driverRoots"),
        ("--set=imagePullSecrets[0]=registry", "imagePullSecrets"),
        ("--set=components.web=yes", "web"),
        ("--set=images.operator=", "operator"),
        ("--set=kubelet.pods=data/pods", "pods"),
    ],
)
def test_a_key_or_value_that_the_chart_does_not_know_is_refused_by_name(
    helm: str, chart: Path, flag: str, says: str
):
    done = template(helm, chart, flag)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert says in done.stderr.split("schema", 1)[1]


def test_the_notes_warn_of_what_would_not_work_and_of_nothing_else(
    helm: str, chart: Path, tmp_path: Path
):
    images = [
        f"--set=images.{name}=registry.example/{name}:7" for name in ("operator", "nodeagent")
    ]
    without = "--set=scheduler.enabled=false"
    quiet = notes(helm, chart, tmp_path / "a", *images)
    assert "rollout status daemonset/vgpu-nodeagent" in quiet
    assert "WARNING" not in quiet
    named = notes(helm, chart, tmp_path / "b")
    assert named.count("WARNING") == 2
    assert "images.operator is registry.invalid/vgpu/operator:dev" in named
    old = notes(helm, chart, tmp_path / "c", *images, "--kube-version=1.35.2")
    assert "WARNING" not in old
    assert "runs Kubernetes v1.35.2" in old
    gate = notes(helm, chart, tmp_path / "d", *images, "--set=mode=Gate", without)
    assert "WARNING" not in gate
    alone = notes(helm, chart, tmp_path / "e", *images, without)
    assert alone.count("WARNING") == 1
    assert "scheduler.enabled is false" in alone
    alerts = "--set=components.alerts=true"
    example = notes(helm, chart, tmp_path / "f", *images, alerts)
    assert example.count("WARNING") == 1
    assert "alerts link to" in example
    own = notes(helm, chart, tmp_path / "g", *images, alerts, "--set=runbooks=https://w.example/m")
    assert "WARNING" not in own


def test_alerts_link_to_the_page_that_is_given(helm: str, chart: Path):
    page = "--set=runbooks=https://wiki.example.org/m"
    theirs = rendered(helm, chart, "--set=components.alerts=true", page)
    rules = theirs["monitoring.coreos.com/v1", "PrometheusRule", "vgpu-system", "vgpu-alerts"]
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            expected = f"https://wiki.example.org/m#{rule['alert'].lower()}"
            assert rule["annotations"]["runbook_url"] == expected
