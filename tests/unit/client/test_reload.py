"""A process waits for the next configuration; a wrong one is logged once and changes nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from vgpu_api.config import ConfigFile, load_cluster_config
from vgpu_client.reload import changed


async def test_the_next_right_configuration_is_returned_and_wrong_ones_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("nvidia: {deviceSplitCount: 7}")
    source = ConfigFile(file, load_cluster_config(file))
    contents = ["nvidia: [", "nvidia: [", "nvidia: {deviceSplitCount: 8}", "nvidia: {}"]
    slept: list[float] = []

    async def next_content(seconds: float) -> None:
        slept.append(seconds)
        file.write_text(contents[len(slept) - 1])

    monkeypatch.setattr(asyncio, "sleep", next_content)
    assert (await changed(source, "WARNING", every_s=3.0)).nvidia.device_split_count == 8
    assert slept == [3.0, 3.0, 3.0]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith(f"configuration: {file}: ")
    assert line.endswith("the former one stays in force")


async def test_the_level_of_logging_is_taken_up_and_nothing_else_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level in force is recorded before each look; without one it is the process's own."""
    file = tmp_path / "config.yaml"
    file.write_text("logging: {level: DEBUG}")
    source = ConfigFile(file, load_cluster_config(file))
    contents = [
        "logging: {level: ERROR}",
        "logging: {level: LOUD}",
        "",
        "nvidia: {deviceSplitCount: 8}",
    ]
    root, levels = logging.getLogger(), []
    before = root.level

    async def next_content(_: float) -> None:
        file.write_text(contents[len(levels)])
        levels.append(logging.getLevelName(root.level))

    monkeypatch.setattr(asyncio, "sleep", next_content)
    try:
        assert (await changed(source, "WARNING")).nvidia.device_split_count == 8
    finally:
        root.setLevel(before)
    assert levels == ["DEBUG", "ERROR", "ERROR", "WARNING"]
