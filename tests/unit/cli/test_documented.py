"""simulate does what docs/simulate.md describes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from vgpu_operator.cli.__main__ import main
from vgpu_operator.insight.documents import ClusterState, DeviceState, read_state

DOCUMENT = Path(__file__).parents[3] / "docs" / "simulate.md"
BLOCKS = re.findall(r"```(json|yaml)\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_the_state_pod_and_result_of_the_document_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (_, state), (_, pod), (_, result) = BLOCKS
    (tmp_path / "state").write_text(state)
    (tmp_path / "pod").write_text(pod)
    files = ["--state", str(tmp_path / "state"), "-f", str(tmp_path / "pod")]
    assert main(["simulate", "-o", "json", *files]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(result)
    assert yaml.safe_load(pod)["metadata"]["name"] == json.loads(result)["id"]


def test_the_document_shows_every_field_of_a_state_and_its_default():
    raw = json.loads(BLOCKS[0][1])
    assert {*raw} == {field.alias for field in ClusterState.model_fields.values()}
    shown = raw["nodes"][0]["devices"][0]
    aliases = {field.alias or name for name, field in DeviceState.model_fields.items()}
    assert {*shown} == aliases
    minimal = {"uuid": "GPU-0", "memoryMiB": 16384, "index": 0, "slots": 10}
    states = []
    for device in (shown, minimal):
        raw["nodes"][0]["devices"][0] = device
        states.append(read_state(raw, source=""))
    assert states[0] == states[1]
