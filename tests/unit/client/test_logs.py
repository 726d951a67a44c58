"""Logs are text or JSON, at a level that the configuration changes while the process runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_client.logs import LiveLevel, LogFormat, configure


@pytest.fixture(autouse=True)
def _root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def test_a_line_of_json_has_its_fields_and_those_of_its_subject(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(LogFormat.JSON, "INFO")
    logging.getLogger("a.room").info(
        "claim %s got a device", "default/c", extra={"claim": "default/c", "devices": ["GPU-0"]}
    )
    line = json.loads(capsys.readouterr().err)
    time = line.pop("time")
    assert time.endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "a.room",
        "message": "claim default/c got a device",
        "claim": "default/c",
        "devices": ["GPU-0"],
    }


def test_an_error_with_its_traceback_stays_one_line_of_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(LogFormat.JSON, "INFO")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("a.room").exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError" in json.loads(line)["exc_info"]


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogFormat.TEXT, "INFO")
    logging.getLogger("a.room").info("said", extra={"claim": "default/c"})
    assert capsys.readouterr().err.endswith("INFO a.room: said\n")


@pytest.mark.parametrize("name", ["aiohttp.access", "kopf.activities", "kopf.objects"])
def test_that_a_library_answered_a_probe_is_not_logged(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(LogFormat.TEXT, "INFO")
    logging.getLogger(name).info("GET /healthz 200")
    assert capsys.readouterr().err == ""
    logging.getLogger(name).warning("it is broken")
    assert "it is broken" in capsys.readouterr().err


class Configured:
    """A configuration file that a test changes under a process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "config.yaml"
        self.live = LiveLevel(self.path, "INFO")
        logging.getLogger().setLevel("INFO")

    def says(self, text: str) -> int:
        """The level in force once this is in the file."""
        self.path.write_text(text)
        self.live.look()
        return logging.getLogger().level


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    return Configured(tmp_path)


def test_the_level_follows_the_configuration_and_back(configured: Configured) -> None:
    assert configured.says("") == logging.INFO
    assert configured.says("logging: {level: DEBUG}") == logging.DEBUG
    assert configured.says("logging: {level: ERROR}") == logging.ERROR
    assert configured.says("nvidia: {}") == logging.INFO


def test_a_configuration_that_cannot_be_used_changes_nothing_and_is_reported_once(
    configured: Configured, caplog: pytest.LogCaptureFixture
) -> None:
    configured.says("logging: {level: DEBUG}")
    caplog.clear()
    assert configured.says("logging: {level: LOUD}") == logging.DEBUG
    assert "is not taken up: logging.level" in caplog.text
    caplog.clear()
    configured.live.look()
    assert caplog.text == ""
    assert configured.says("logging: [") == logging.DEBUG
    assert configured.says("logging: {level: WARNING}") == logging.WARNING


def test_a_file_that_is_away_for_a_moment_changes_nothing(configured: Configured) -> None:
    configured.says("logging: {level: DEBUG}")
    configured.path.unlink()
    configured.live.look()
    assert logging.getLogger().level == logging.DEBUG


def test_other_changes_are_said_to_wait_for_the_next_start(
    configured: Configured, caplog: pytest.LogCaptureFixture
) -> None:
    configured.says("nvidia: {deviceSplitCount: 10}")
    assert caplog.text == ""
    configured.says("nvidia: {deviceSplitCount: 20}")
    assert "all but logging.level counts from the next start on" in caplog.text
