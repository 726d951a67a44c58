"""The scheduler configurations in manifests/ name what the configuration says is ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vgpu_api.config import load_cluster_config

MANIFESTS = Path(__file__).parents[2] / "manifests"


@pytest.mark.parametrize(
    "file", ["base/scheduler/scheduler.yaml", "examples/main-scheduler/kube-scheduler.yaml"]
)
def test_a_scheduler_manages_every_word_in_which_pods_ask(file: str) -> None:
    config = yaml.safe_load((MANIFESTS / file).read_text())
    (extender,) = config["extenders"]
    named = {entry["name"]: entry["ignoredByScheduler"] for entry in extender["managedResources"]}
    assert named == load_cluster_config(MANIFESTS / "base" / "config.yaml").managed_resources()
