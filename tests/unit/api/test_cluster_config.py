"""The configuration reads HAMi's keys and names the path of each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vgpu_api.config import ClusterConfig, load_cluster_config
from vgpu_api.config.cluster import read_cluster_config
from vgpu_api.errors import BadInput


def test_no_file_means_the_defaults() -> None:
    config = load_cluster_config(None)
    assert config == ClusterConfig()
    assert config.nvidia.resource_count_name == "nvidia.com/gpu"


@pytest.mark.parametrize("key", ["defaultMem", "defaultMemory"])
def test_hamis_keys_are_read(key: str) -> None:
    document = {"nvidia": {"resourceCountName": "example.com/gpu", key: 512, "defaultGPUNum": 2}}
    nvidia = read_cluster_config(document).nvidia
    assert (nvidia.resource_count_name, nvidia.default_memory, nvidia.default_gpu_num) == (
        "example.com/gpu",
        512,
        2,
    )


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"nvidia": {"defaultCores": 101}}, "nvidia.defaultCores"),
        ({"nvidia": {"resourceCountName": "gpu"}}, "nvidia.resourceCountName"),
        ({"nvidia": {"defaultColour": 1}}, "nvidia.defaultColour"),
        ({"scheduling": {"nodePolicy": "Tight"}}, "scheduling.nodePolicy"),
        ({"web": {"prometheus": "prometheus:9090"}}, "web.prometheus"),
        ({"web": {"prometheus": "http://user:password@host"}}, "web.prometheus"),
        ({"web": {"prometheus": "http://host?x=1"}}, "web.prometheus"),
        ({"web": {"prometheusLabels": {"a": "b"}}}, "web"),
        ("text", "document"),
    ],
)
def test_an_error_names_its_path(document: Any, path: str) -> None:
    with pytest.raises(BadInput) as refusal:
        read_cluster_config(document)
    assert refusal.value.field == path


def test_a_file_that_is_no_yaml_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("nvidia: [")
    with pytest.raises(BadInput, match=r"config.yaml"):
        load_cluster_config(file)


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("")
    assert load_cluster_config(file) == ClusterConfig()


def test_the_prometheus_of_the_page_is_a_url_and_its_labels() -> None:
    given = {"prometheus": "https://p.example:9090/base/", "prometheusLabels": {"cluster": "a"}}
    page = read_cluster_config({"web": given}).web
    assert (page.prometheus, page.prometheus_labels) == (
        "https://p.example:9090/base",
        {"cluster": "a"},
    )
