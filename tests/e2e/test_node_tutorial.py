"""Runs the tutorial's commands on a real node, exactly as the page has them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from real_node import RealNode

ROOT = Path(__file__).parents[2]
STEP = "## 3. On a cluster"
NODE = ("bash", "tests/cluster/node.sh", "in", "bash", "-e")


def commands() -> str:
    """Return the commands of step 3, which works on any cluster."""
    _, _, step = (ROOT / "docs" / "tutorial.md").read_text().partition(f"\n{STEP}\n")
    blocks = re.findall(r"^```sh\n(.*?)^```$", step, re.MULTILINE | re.DOTALL)
    return "".join(blocks)


@pytest.fixture(scope="module")
def typed(node: RealNode) -> str:
    """Run the commands in a shell on the node, up to the first that fails; return the output."""
    done = subprocess.run(
        [*NODE, "-c", commands()],
        cwd=ROOT,
        env={**os.environ, "VGPU_NODE": str(node.folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_slice_is_what_nvidia_smi_shows_in_the_container(typed: str) -> None:
    assert re.search(r"0MiB / +8192MiB", typed)


def test_the_claim_is_allocated_explained_and_resized(typed: str) -> None:
    assert "vgpuclaim.vgpu.dev/small condition met" in typed
    assert "Claim: default/training-job-" in typed
    assert "claim default/small: asks 1 × 10Gi, 50 %; in force" in typed


def test_nothing_is_left(node: RealNode, typed: str) -> None:
    assert 'pod "training-job" deleted' in typed
    assert node.kubectl("-n", "default", "get", "vgpuclaims,pods", "-o", "name") == ""
