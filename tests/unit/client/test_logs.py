"""Logs are text or JSON, at a level that the configuration changes while the process runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from vgpu_client.logs import LogFormat, configure


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
