"""One real node for the whole run, on which the project's manifests are installed.

These tests are not collected without VGPU_TEST_CLUSTER=node, because they need root and take
minutes. With VGPU_TEST_CLUSTER=node-claims the project is installed in Claims mode. Tests that take
many minutes and need a node of their own are collected only with VGPU_TEST_CLUSTER=node-alone;
tests that need only a control plane are also collected with VGPU_TEST_CLUSTER=real. If VGPU_NODE
names the folder of a running node, the tests use that node and leave it running.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from real_node import AGENTS, SYSTEM, RealNode

_RUN = os.environ.get("VGPU_TEST_CLUSTER")
_IGNORED = {
    "node": ["test_alone_*", "test_claims_*"],
    # In Claims mode, too, run what the node, the kubelet and the container decide.
    "node-claims": [
        *("test_alone_*", "test_tenant_*", "test_node_refusals*", "test_node_resize*"),
        *("test_node_seed_*", "test_node_sta*", "test_node_sto*", "test_node_tut*"),
    ],
    "node-alone": ["test_claims_*"],
    "real": ["test_node_*", "test_alone_*", "test_claims_*"],
}
collect_ignore_glob = _IGNORED.get(_RUN or "", ["test_*"])

BUILD = Path(__file__).parents[2] / "build" / "e2e"
_node: RealNode | None = None


@pytest.fixture(scope="session")
def node() -> Iterator[RealNode]:
    global _node
    if folder := os.environ.get("VGPU_NODE"):
        _node = RealNode(Path(folder))
        yield _node
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    _node = RealNode(BUILD / "node")
    _node.remove()
    try:
        if _RUN == "node-claims":
            _node.install_claims()
        else:
            _node.install()
        yield _node
    finally:
        if not os.environ.get("KEEP"):
            _node.remove()


@pytest.fixture
def namespace(node: RealNode) -> Iterator[str]:
    """Create a namespace for the test; all devices are free again when the test has ended."""
    with node.namespace() as name:
        yield name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and _node is not None:
        _dump(_node, BUILD / item.name.replace("/", "_"))
    return report


def _dump(node: RealNode, folder: Path) -> None:
    """Store the state of the node's objects and logs when a test fails."""
    folder.mkdir(parents=True, exist_ok=True)
    looks = {
        "objects": ("get", "pods,vgpuclaims,resourceclaims,gpudevices,nodes", "-A", "-o", "wide"),
        "events": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        "claims.yaml": ("get", "vgpuclaims", "-A", "-o", "yaml"),
        "resourceclaims.yaml": ("get", "resourceclaims,resourceslices", "-A", "-o", "yaml"),
        "pods.yaml": ("get", "pods", "-A", "-o", "yaml"),
    }
    components = [(SYSTEM, name) for name in ("operator", "webhook", "scheduler")]
    for pods, name in [(AGENTS, "nodeagent"), *components]:
        label = f"app.kubernetes.io/component={name}"
        logs = ("-n", pods, "logs", "-l", label, "--tail=-1", "--prefix", "--all-containers")
        looks[f"{name}.log"] = logs
        looks[f"{name}.previous.log"] = (*logs, "--previous")
    for name, arguments in looks.items():
        try:
            done = node.attempt("kubectl", *arguments, limit_s=30)
            (folder / name).write_text(done.stdout + done.stderr)
        except (AssertionError, OSError, ValueError) as error:
            (folder / name).write_text(f"{error}\n")
    for log in (node.folder / "log").glob("k*.log"):
        (folder / log.name).write_text(log.read_text(errors="replace")[-200_000:])
