"""`make images`, `make install` and `make kind` call other programs as these expect it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from manual.words import ROOT
from release.chart import by_key, kustomized

pytestmark = pytest.mark.tools

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PLACE = "registry.example/vgpu"


class Programs:
    """A folder for PATH, whose programs write down how they are called.

    `kubectl version` answers as a server of a given version, and `kubectl kustomize` is real.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = folder / "calls"
        for name in (
            "bash",
            "sed",
            "git",
            "xargs",
            "cp",
            "mktemp",
            "mkdir",
            "rm",
            "dirname",
            "cut",
            "cat",
            "grep",
        ):
            self._link(name)

    def _link(self, name: str) -> None:
        found = shutil.which(name)
        assert found is not None, name
        (self._folder / name).symlink_to(found)

    def add(self, name: str, answer: str = "", *, status: int = 0) -> None:
        """Add a program that prints an answer."""
        program = self._folder / name
        call = f'echo {name} "$@" >> {self._calls}'
        program.write_text(f"#!/bin/sh\n{call}\necho '{answer}'\nexit {status}\n")
        program.chmod(0o755)

    def run(
        self, script: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = {"PATH": str(self._folder), "HOME": os.environ.get("HOME", "/")}
        return subprocess.run(
            ["bash", str(ROOT / "tests" / "release" / script), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=path | environment,
        )

    def calls(self) -> list[str]:
        """Return the calls so far, without the name of the temporary folder."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def server(version: str) -> str:
    versions = {
        "clientVersion": {"gitVersion": "v1.30.0"},
        "serverVersion": {"gitVersion": version},
    }
    return json.dumps(versions, indent=2)


def test_docker_builds_both_architectures_and_pushes_only_if_asked(programs: Programs):
    programs.add("docker")
    programs.add("buildah")
    assert programs.run("images.sh", REGISTRY=PLACE, PUSH="1").returncode == 0
    pushed = [call for call in programs.calls() if "buildx build" in call]
    assert len(pushed) == 2
    for name, call in zip(("operator", "nodeagent"), pushed, strict=True):
        assert "--platform linux/amd64,linux/arm64 " in call
        assert f"--tag {PLACE}/{name}:{VERSION} --push " in call
        assert f"/{name}/Dockerfile " in call
    kept = programs.run("images.sh", REGISTRY=PLACE)
    assert kept.returncode == 0
    assert [call for call in programs.calls() if "--push" in call] == pushed
    assert f"{PLACE}/operator:{VERSION} is in build/oci/operator.tar" in kept.stdout
    assert not [call for call in programs.calls() if call.startswith("buildah")]


def test_a_docker_without_buildx_is_not_used(programs: Programs):
    programs.add("docker", status=1)
    assert (
        "docker with buildx, podman or buildah" in programs.run("images.sh", REGISTRY=PLACE).stderr
    )
    programs.add("podman")
    assert programs.run("images.sh", REGISTRY=PLACE).returncode == 0
    assert [call for call in programs.calls() if call.startswith("podman build")]


def test_without_docker_buildah_makes_a_list_of_both_architectures(programs: Programs):
    programs.add("buildah")
    done = programs.run(
        "images.sh", REGISTRY=PLACE, PUSH="1", BASE="registry.example/python@sha256:1"
    )
    assert done.returncode == 0, done.stderr
    reference = f"{PLACE}/operator:{VERSION}"
    build = next(call for call in programs.calls() if call.startswith("buildah build"))
    assert f"--manifest {reference} --build-arg BASE=registry.example/python@sha256:1 " in build
    assert f"buildah manifest push --all {reference} docker://{reference}" in programs.calls()


@pytest.mark.parametrize(
    ("script", "environment", "says"),
    [
        ("images.sh", {}, "make images REGISTRY="),
        ("images.sh", {"REGISTRY": PLACE}, "none is in PATH"),
        ("install.sh", {}, "make install REGISTRY="),
        ("install.sh", {"REGISTRY": PLACE, "MODE": "gate"}, "MODE: Invalid value: gate"),
    ],
)
def test_what_is_missing_is_named(
    programs: Programs, script: str, environment: dict[str, str], says: str
):
    done = programs.run(script, **environment)
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"MODE": "Claims"}, "needs Kubernetes 1.36 or later, and this is 1.35.2"),
        ({"COMPONENTS": "webb"}, "COMPONENTS: Invalid value: webb"),
    ],
)
def test_nothing_is_applied_that_the_cluster_or_the_project_does_not_have(
    programs: Programs, environment: dict[str, str], says: str
):
    programs.add("kubectl", server("v1.35.2"))
    done = programs.run("install.sh", REGISTRY=PLACE, **environment)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert not [call for call in programs.calls() if "apply" in call]


@pytest.mark.parametrize(
    ("version", "components"),
    [("v1.31.9-eks-5d4a308", ("agents-read-all-pods", "web")), ("v1.36.3", ("web",))],
)
def test_an_installation_names_the_pushed_images_and_follows_the_clusters_version(
    programs: Programs, version: str, components: tuple[str, ...]
):
    programs.add("kubectl", server(version))
    done = programs.run("install.sh", REGISTRY=PLACE, COMPONENTS="web")
    assert done.returncode == 0, done.stderr
    assert "kubectl apply --server-side -k build/install" in programs.calls()
    assert len([call for call in programs.calls() if "rollout status" in call]) == 3
    built = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / "build" / "install")],
        capture_output=True,
        text=True,
        check=True,
    )
    objects = by_key(yaml.safe_load_all(built.stdout))
    assert objects.keys() == kustomized(components).keys()
    images = {
        container["image"]
        for key, obj in objects.items()
        if key[1] in ("Deployment", "DaemonSet")
        for container in obj["spec"]["template"]["spec"]["containers"]
    }
    number = version.removeprefix("v").partition("-")[0]
    assert images == {
        f"{PLACE}/operator:{VERSION}",
        f"{PLACE}/nodeagent:{VERSION}",
        f"registry.k8s.io/kube-scheduler:v{number}",
    }


KIND = ROOT / "build" / "kind"
CONTAINERD_1 = "containerd://1.7.24"


@pytest.fixture
def laptop(programs: Programs) -> Programs:
    """The programs that `make kind` needs, on a machine for which it can work."""
    programs.add("uname", "x86_64")
    programs.add("docker")
    programs.add("kind")
    programs.add("kubectl", server("v1.35.0"))
    return programs


def test_a_laptop_gets_a_cluster_with_the_images_and_simulated_gpus(laptop: Programs):
    done = laptop.run("kind.sh", "up", NODE_IMAGE="kindest/node:v1.35.0")
    assert done.returncode == 0, done.stderr
    place, calls = "registry.invalid/vgpu", laptop.calls()
    # The flags are those that `kind create cluster` and `kind load image-archive` list (v0.33.0).
    assert [call for call in calls if call.startswith("kind")] == [
        "kind get clusters",
        f"kind create cluster --name vgpu --kubeconfig {KIND}/kubeconfig --wait 5m "
        "--image kindest/node:v1.35.0",
        f"kind load image-archive {KIND}/operator.tar --name vgpu",
        f"kind load image-archive {KIND}/nodeagent.tar --name vgpu",
    ]
    agent = f"{place}/nodeagent:{VERSION}"
    assert f"docker build --file nodeagent/Dockerfile --tag {agent} --target demo ." in calls
    assert f"docker save --output {KIND}/nodeagent.tar {agent}" in calls
    order = ["docker save", "kind create", "kind load", "kubectl apply"]
    first = [next(at for at, call in enumerate(calls) if call.startswith(each)) for each in order]
    assert first == sorted(first)

    applied = yaml.safe_load((ROOT / "build" / "install" / "kustomization.yaml").read_text())
    assert applied["resources"] == ["../../manifests/overlays/demo"]
    assert applied["components"] == ["../../manifests/components/agents-read-all-pods"]
    pod = yaml.safe_load((KIND / "pod.yaml").read_text())
    assert pod["spec"]["containers"][0]["image"] == agent
    for step in (f"export KUBECONFIG={KIND}/kubeconfig", f"kubectl apply -f {KIND}/pod.yaml"):
        assert step in done.stdout


def test_a_laptops_cluster_is_removed_by_its_name(laptop: Programs):
    assert laptop.run("kind.sh", "down").returncode == 0
    removal = f"kind delete cluster --name vgpu --kubeconfig {KIND}/kubeconfig"
    assert removal in laptop.calls()


@pytest.mark.parametrize(
    ("program", "answer", "status", "says"),
    [
        ("docker", "", 1, "docker or podman is needed: none is in PATH, or its daemon does not"),
        ("uname", "arm64", 0, "on amd64 (x86_64) only, and this is arm64"),
        ("kind", "vgpu", 0, "cluster vgpu is there already; make kind-down removes it"),
        ("kubectl", CONTAINERD_1, 0, f"the node runs {CONTAINERD_1}, which has CDI off"),
        ("kubectl", server("v1.30.4"), 0, "Kubernetes 1.31 or later is needed, and this is 1.30.4"),
    ],
)
def test_a_laptop_that_cannot_have_the_project_is_told_why(
    laptop: Programs, program: str, answer: str, status: int, says: str
):
    laptop.add(program, answer, status=status)
    done = laptop.run("kind.sh", "up")
    assert done.returncode != 0
    assert says in done.stderr
    assert not [call for call in laptop.calls() if "apply" in call]


def test_without_kind_its_address_is_named(programs: Programs):
    assert "https://kind.sigs.k8s.io" in programs.run("kind.sh", "up").stderr
