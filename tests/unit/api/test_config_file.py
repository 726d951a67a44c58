"""A mounted configuration may change: the new one is taken whole, or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_api.config import ClusterConfig, ConfigFile, config_text, load_cluster_config
from vgpu_api.errors import BadInput

EXAMPLES = Path(__file__).parents[3] / "examples"
GOOD, OTHER = "nvidia: {deviceSplitCount: 7}", "nvidia: {deviceSplitCount: 8}"
BAD = "nvidia: {deviceSplitCount: 9, defaultCores: 101}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


def test_a_new_configuration_is_returned_once_and_is_in_force(file: Path) -> None:
    source = ConfigFile(file, load_cluster_config(file))
    assert source.look() is None
    file.write_text(OTHER)
    new = source.look()
    assert new is not None
    assert (new.nvidia.device_split_count, source.config) == (8, new)
    assert source.look() is None


def test_a_wrong_one_leaves_the_old_one_in_force_and_is_reported_once(file: Path) -> None:
    source = ConfigFile(file, load_cluster_config(file))
    file.write_text(BAD)
    with pytest.raises(BadInput, match=r"nvidia.defaultCores: Invalid value: 101"):
        source.look()
    assert source.look() is None
    assert source.config.nvidia.device_split_count == 7
    file.write_text(GOOD)
    assert source.look() is None
    file.write_text(OTHER)
    assert source.look() is not None


def test_the_same_configuration_in_other_words_is_none_that_is_new(file: Path) -> None:
    source = ConfigFile(file, load_cluster_config(file))
    file.write_text("# by hand\nnvidia.deviceSplitCount: '7'\n")
    assert source.look() is None


def test_a_file_that_cannot_be_read_for_a_moment_changes_nothing(file: Path) -> None:
    source = ConfigFile(file, load_cluster_config(file))
    file.unlink()
    assert source.look() is None
    file.write_text(OTHER)
    assert source.look() is not None


def test_where_the_last_good_one_stands_in_the_first_right_one_is_new(file: Path) -> None:
    source = ConfigFile(file, load_cluster_config(file), stands_in=True)
    assert source.look() is not None
    assert source.look() is None


def test_without_a_file_nothing_ever_changes() -> None:
    assert ConfigFile(None, ClusterConfig()).look() is None


def test_notices_of_a_new_configuration_are_reported(file: Path) -> None:
    notices: list[str] = []
    source = ConfigFile(file, load_cluster_config(file), lambda notice: notices.append(str(notice)))
    file.write_text(f"{OTHER[:-1]}, libCudaLogLevel: 4}}")
    assert source.look() is not None
    assert [notice.split(":")[0] for notice in notices] == ["nvidia.libCudaLogLevel"]


def test_a_folder_is_the_config_maps_that_are_mounted_in_it(tmp_path: Path) -> None:
    """The kubelet mounts keys as links into a folder whose name begins with two dots."""
    data = tmp_path / "..2026_01_01"
    data.mkdir()
    keys = {
        "device-config.yaml": "nvidia: {deviceSplitCount: 5}",
        "config.json": '{"nodeconfig": [{"name": "a", "devicesplitcount": 3}]}',
        "nvidia.defaultMem": "1000",
    }
    for key, text in keys.items():
        (data / key).write_text(text)
        (tmp_path / key).symlink_to(data / key)
    config = load_cluster_config(tmp_path)
    assert (config.nvidia.device_split_count, config.nvidia.default_memory) == (5, 1000)
    assert config.on_node("a", {}).nvidia.device_split_count == 3
    assert "..2026" not in config_text(tmp_path)


@given(contents=st.lists(st.sampled_from([GOOD, OTHER, BAD, "[", "", "nvidia: 3"]), max_size=8))
def test_whatever_is_mounted_in_turn_the_one_in_force_is_the_last_right_one(
    contents: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No mixture is used: the effective configuration is always the last valid content."""
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    file.write_text(GOOD)
    expected = load_cluster_config(file)
    source = ConfigFile(file, expected)
    for content in contents:
        file.write_text(content)
        with contextlib.suppress(BadInput):
            expected = load_cluster_config(file)
        with contextlib.suppress(BadInput):
            source.look()
        assert source.config == expected
