"""The Helm chart on a real node: installed, upgraded with other values, and uninstalled.

It needs a node of its own without anything of the project: run by `make e2e-chart`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from node_overlay import CLUSTER, write_adaptation
from real_node import RealNode, a_pod, a_slice, until
from release.chart import write

BUILD = Path(__file__).parents[2] / "build" / "e2e"
RELEASE = "vgpu"
pytestmark = pytest.mark.timeout(1500)


class Helm:
    """Helm on a node, with one chart.

    Args:
        node: The node of the cluster.
        folder: The folder for the chart and the files beside it.
    """

    def __init__(self, node: RealNode, folder: Path) -> None:
        build = ["bash", str(CLUSTER / "helm" / "build.sh")]
        found = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True)
        self._helm = found.stdout.strip()
        self._node = node
        self._folder = folder
        write(folder / "chart", "1.2.3")
        self._renderer = _a_renderer(folder / "node")

    def put(self, verb: str, **values: object) -> None:
        """Install or upgrade with values that differ from the chart's defaults."""
        file = self._folder / "values.yaml"
        images = {"scheduler": "registry.invalid/vgpu/kube:dev"}
        file.write_text(yaml.safe_dump({"images": images, **values}))
        self.run(
            *(verb, RELEASE, str(self._folder / "chart"), f"--values={file}"),
            *(f"--post-renderer={self._renderer}", "--wait", "--timeout=5m"),
        )

    def run(self, *arguments: str) -> str:
        """Return Helm's output.

        Raises:
            AssertionError: Helm failed.
        """
        return self._node.run(self._helm, *arguments, limit_s=330)


def _a_renderer(folder: Path) -> Path:
    """Return a post-renderer that adds what this node needs to Helm's output."""
    folder.mkdir()
    write_adaptation(folder)
    program = folder / "render.sh"
    program.write_text(f"#!/bin/sh\ncd '{folder}' && cat > rendered.yaml && kubectl kustomize .\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def bare() -> Iterator[RealNode]:
    """A node without the project, for this test only."""
    BUILD.mkdir(parents=True, exist_ok=True)
    node = RealNode(BUILD / "chart-node")
    node.remove()
    try:
        node.on()
        yield node
    finally:
        node.remove()


def offered(node: RealNode) -> str:
    """Return the number of slots that the node offers."""
    (found,) = node.get("node")["items"]
    return str(found["status"]["allocatable"].get("nvidia.com/gpu", ""))


def test_a_chart_is_installed_upgraded_and_uninstalled(bare: RealNode, tmp_path: Path) -> None:
    helm = Helm(bare, tmp_path)
    helm.put("install")
    until(lambda: offered(bare) == "80", "ten slots of each of eight devices", limit_s=120)
    bare.apply(a_pod("user", "default", limits=a_slice(1000)))
    bare.ready("default", "user")
    assert bare.filled("default", "user") <= 1000 << 20
    before = bare.get("pod", "user")

    helm.put("upgrade", config="nvidia: {deviceSplitCount: 4}\n", components={"web": True})
    until(lambda: offered(bare) == "32", "four slots of each of eight devices", limit_s=180)
    assert bare.get("deployment", "vgpu-web", "vgpu-system")["status"]["readyReplicas"] > 0
    after = bare.get("pod", "user")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    bare.apply(a_pod("second", "default", limits=a_slice(2000)))
    bare.ready("default", "second")
    (release,) = json.loads(helm.run("list", "--output=json"))
    assert (release["revision"], release["status"]) == ("2", "deployed")

    # Our uninstall comes first, because it knows the order; then Helm only has its record to
    # remove.
    taken_off = (sys.executable, "-m", "vgpu_operator.cli", "uninstall", "--yes", "--delete-pods")
    done = bare.attempt(*taken_off, "--no-wait-for-capacity", limit_s=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    helm.run("uninstall", RELEASE)
    assert json.loads(helm.run("list", "--all", "--output=json")) == []
    assert bare.get("secret")["items"] == []
    bare.nothing_of_ours_is_left(with_capacity=False)
