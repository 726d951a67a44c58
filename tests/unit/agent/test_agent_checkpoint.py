from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vgpu_api.effective import Use
from vgpu_nodeagent.deviceplugin import slots
from vgpu_nodeagent.deviceplugin.checkpoint import Checkpoint, decode, encode
from vgpu_nodeagent.deviceplugin.slots import Binding, Holding, SlotState
from vgpu_nodeagent.errors import CheckpointDamaged

PATH = Path("slots.json")


def a_state() -> SlotState:
    state, lease = slots.allocate(SlotState(), slot_ids=["slot-1"], nonce="abc", now=12.5)
    holding = Holding("claim-uid", "ns", "claim", "t0", "pod-uid", "pod", {"GPU-0": Use(8, 30, 1)})
    return slots.grant(
        state,
        holding=holding,
        bindings=[Binding(lease.name, "main")],
        allocatable={"GPU-0": Use(16, 100, 10)},
    )


def test_what_is_written_is_read_again() -> None:
    assert decode(PATH, encode(a_state())) == a_state()


def test_every_prefix_of_a_checkpoint_is_recognised_as_cut() -> None:
    content = encode(a_state())
    for length in range(len(content)):
        with pytest.raises(CheckpointDamaged, match=r"slots\.json"):
            decode(PATH, content[:length])


def test_a_changed_value_is_recognised() -> None:
    content = encode(a_state()).replace(b'"memory_mib": 8', b'"memory_mib": 4')
    with pytest.raises(CheckpointDamaged, match="checksum"):
        decode(PATH, content)


def test_an_unknown_format_is_not_read_in_part() -> None:
    document = json.loads(encode(a_state()))
    document["format"] = 2
    with pytest.raises(CheckpointDamaged, match="has format 2; this agent knows 1"):
        decode(PATH, json.dumps(document).encode())


@pytest.mark.parametrize("content", [b"[]", b"null", b'"text"', b"{}"])
def test_json_that_is_no_checkpoint_is_recognised(content: bytes) -> None:
    with pytest.raises(CheckpointDamaged, match="names no format"):
        decode(PATH, content)


def test_without_a_file_there_is_nothing_to_load(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "slots.json").load() is False


def test_a_commit_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "slots.json").commit(a_state())
    again = Checkpoint(tmp_path / "slots.json")
    assert again.load() is True
    assert again.state == a_state()


def test_a_commit_that_fails_changes_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "slots.json")
    checkpoint.commit(a_state())
    content = (tmp_path / "slots.json").read_bytes()
    (tmp_path / ".slots.json.new").mkdir()  # the temporary file cannot be opened
    with pytest.raises(OSError, match="directory"):
        checkpoint.commit(SlotState())
    assert checkpoint.state == a_state()
    assert (tmp_path / "slots.json").read_bytes() == content


def test_a_damaged_file_is_kept_for_people_to_look_at(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"
    checkpoint = Checkpoint(path)
    checkpoint.commit(a_state())
    os.truncate(path, 100)
    with pytest.raises(CheckpointDamaged):
        Checkpoint(path).load()
    aside = checkpoint.set_aside("now")
    assert (aside.name, aside.stat().st_size, path.exists()) == (
        "slots.json.damaged-now",
        100,
        False,
    )
