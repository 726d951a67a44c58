"""The scheduler configurations in manifests/ name what the configuration says is ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vgpu_api.config import load_cluster_config
from vgpu_operator.extender.binding import ANSWER_WITHIN_S

MANIFESTS = Path(__file__).parents[2] / "manifests"


FILES = ("base/scheduler/scheduler.yaml", "examples/main-scheduler/kube-scheduler.yaml")


@pytest.mark.parametrize("file", FILES)
def test_a_scheduler_waits_a_little_longer_than_bind_takes_and_not_much(file: str) -> None:
    """A call to an address that is gone blocks its loop for as long."""
    (extender,) = yaml.safe_load((MANIFESTS / file).read_text())["extenders"]
    assert ANSWER_WITHIN_S + 1 <= float(extender["httpTimeout"].removesuffix("s")) <= 10


@pytest.mark.parametrize("file", FILES)
def test_a_scheduler_manages_every_word_in_which_pods_ask(file: str) -> None:
    config = yaml.safe_load((MANIFESTS / file).read_text())
    (extender,) = config["extenders"]
    named = {entry["name"]: entry["ignoredByScheduler"] for entry in extender["managedResources"]}
    assert named == load_cluster_config(MANIFESTS / "base" / "config.yaml").managed_resources()
