"""`kubectl vgpu uninstall` on a real node leaves nothing behind, whatever happened before.

Each test installs a node of its own and uninstalls it, and a kubelet takes five minutes to forget a
device plugin: run by `make e2e-uninstall`, not by `make e2e`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_overlay import CLUSTER
from real_node import AGENTS, SYSTEM, RealNode, a_pod, a_slice, until

BUILD = Path(__file__).parents[2] / "build" / "e2e"

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture
def own() -> Iterator[RealNode]:
    """A node for this test only, with the project installed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    node = RealNode(BUILD / "uninstalled-node")
    node.remove()
    try:
        node.install()
        yield node
    finally:
        node.remove()


def uninstall(node: RealNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "vgpu_operator.cli", "uninstall", *arguments)
    return node.attempt(*command, limit_s=900)


def a_user(node: RealNode) -> None:
    node.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
    node.apply(a_pod("user", "default", limits=a_slice(1000)))
    node.ready("default", "user")


def test_a_running_installation_leaves_nothing(own: RealNode) -> None:
    a_user(own)
    refused = uninstall(own, "--yes")
    assert refused.returncode == 2
    assert "pod default/user uses a GPU" in refused.stderr
    done = uninstall(own, "--yes", "--delete-pods")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    own.nothing_of_ours_is_left()
    own.apply(a_pod("plain", "default"))
    own.ready("default", "plain")


def test_it_ends_what_a_plain_delete_with_pods_running_leaves_hanging(own: RealNode) -> None:
    """The CRD of claims used to stay for ever, because nobody was left to remove the finalizer."""
    a_user(own)
    overlay = str(CLUSTER / "overlay")
    own.attempt("kubectl", "delete", "-k", overlay, "--wait=false", "--ignore-not-found")
    for namespace in (SYSTEM, AGENTS):
        pods = ("-n", namespace, "get", "pods", "-o", "name")
        until(lambda pods=pods: not own.kubectl(*pods), f"{namespace} to be empty", limit_s=180)
    own.kubectl("delete", "pod", "user", "--grace-period=1", limit_s=120)
    assert "vgpuclaims" in own.kubectl("get", "crd", "-o", "name")  # the deletion hangs
    done = uninstall(own, "--yes", "--delete-pods")
    (host,) = done.stderr.splitlines()  # kubectl no longer knows which program cleaned the hosts
    assert "hosts were not cleaned" in host
    names = own.kubectl("get", "crd,namespace", "-o", "name")
    assert "vgpu" not in names
