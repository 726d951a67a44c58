from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_api.effective import Use
from vgpu_nodeagent.errors import CheckpointDamaged
from vgpu_nodeagent.state import slots
from vgpu_nodeagent.state.checkpoint import Checkpoint, decode, encode
from vgpu_nodeagent.state.slots import Binding, ClaimAllocation, SlotState

PATH = Path("slots.json")


def a_state() -> SlotState:
    state, slot_allocation = slots.allocate(SlotState(), slot_ids=["slot-1"], nonce="abc", now=12.5)
    claim_allocation = ClaimAllocation(
        "claim-uid", "ns", "claim", "t0", "pod-uid", "pod", {"GPU-0": Use(8, 30, 1)}
    )
    return slots.grant(
        state,
        claim_allocation=claim_allocation,
        bindings=[Binding(slot_allocation.name, "main", interposed=True)],
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
    document["format"] = 3
    with pytest.raises(CheckpointDamaged, match="has format 3; this agent knows 2"):
        decode(PATH, json.dumps(document).encode())


@pytest.mark.parametrize("content", [b"[]", b"null", b'"text"', b"{}"])
def test_json_that_is_no_checkpoint_is_recognised(content: bytes) -> None:
    with pytest.raises(CheckpointDamaged, match="has no format"):
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


ON_DISK = b"""{
 "checksum": "244ed7205b5bbfcb4e41d230f7b62cf01c0b8d23ce9d6d13867896eb20038498",
 "format": 2,
 "state": {
  "cuts": {},
  "holdings": {
   "claim-uid": {
    "allocation_id": "t0",
    "claim_name": "claim",
    "claim_uid": "claim-uid",
    "closed": false,
    "init_ended": null,
    "init_ids": [],
    "namespace": "ns",
    "pod_name": "pod",
    "pod_uid": "pod-uid",
    "resource_claim_uid": "",
    "use": {
     "GPU-0": {
      "cores": 30,
      "memory_mib": 8,
      "slots": 1
     }
    }
   }
  },
  "leases": {
   "slot-1-abc": {
    "allocated_at": 12.5,
    "claim_uid": "claim-uid",
    "container": "main",
    "interposed": true,
    "name": "slot-1-abc",
    "pod_uid": "pod-uid",
    "slot_ids": [
     "slot-1"
    ]
   }
  }
 }
}"""


def test_the_file_is_for_people_too_and_stays_readable_for_later_agents() -> None:
    """Nodes are updated while their pods run, so later agents must be able to read this file."""
    written = encode(a_state())
    assert json.loads(written) == json.loads(ON_DISK)
    assert written.count(b"\n") >= ON_DISK.count(b"\n")
    assert decode(PATH, ON_DISK) == a_state()


def test_a_file_of_an_agent_that_prepared_no_resource_claims_is_read() -> None:
    body = json.loads(ON_DISK)["state"]
    del body["holdings"]["claim-uid"]["resource_claim_uid"]
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    former = {"format": 2, "checksum": hashlib.sha256(canonical).hexdigest(), "state": body}
    assert decode(PATH, json.dumps(former).encode()) == a_state()


def test_a_lease_that_names_no_library_is_read_as_one_of_which_nobody_knows() -> None:
    body = json.loads(ON_DISK)["state"]
    del body["leases"]["slot-1-abc"]["interposed"]
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    former = {"format": 2, "checksum": hashlib.sha256(canonical).hexdigest(), "state": body}
    read = decode(PATH, json.dumps(former).encode())
    assert read == replace(
        a_state(),
        slot_allocations={
            n: replace(x, interposed=None) for n, x in a_state().slot_allocations.items()
        },
    )


def test_a_file_of_an_agent_that_wrote_other_bytes_for_the_same_text_is_read() -> None:
    (claim_allocation,) = a_state().claim_allocations.values()
    state = replace(
        a_state(), claim_allocations={"claim-uid": replace(claim_allocation, pod_name="pød")}
    )
    body = json.loads(encode(state))["state"]
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    former = {"format": 2, "checksum": hashlib.sha256(canonical).hexdigest(), "state": body}
    assert decode(PATH, json.dumps(former).encode()) == decode(PATH, encode(state)) == state


def damaged(content: bytes) -> str:
    with pytest.raises(CheckpointDamaged) as refused:
        decode(PATH, content)
    assert refused.value.path == PATH
    return str(refused.value)


def test_damage_is_told_with_the_file_and_what_is_wrong_with_it() -> None:
    assert damaged(b"{").startswith("checkpoint slots.json: is truncated or not JSON (Expecting")
    assert damaged(b"{}") == "checkpoint slots.json: is not a checkpoint: it has no format"
    assert damaged(b'{"format": "x"}') == (
        "checkpoint slots.json: has format 'x'; this agent knows 2"
    )
    assert damaged(ON_DISK.replace(b"12.5", b"12.6")) == (
        "checkpoint slots.json: has a checksum that does not match its content"
    )


def test_a_state_that_is_whole_but_none_is_told_with_its_field() -> None:
    body = {"leases": {"a": {"name": "a", "slot_ids": 7, "allocated_at": "?"}}, "holdings": {}}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    checksum = hashlib.sha256(canonical).hexdigest()
    content = json.dumps({"format": 2, "checksum": checksum, "state": body}).encode()
    said = damaged(content)
    assert said.startswith("checkpoint slots.json: field leases.a.slot_ids: Input should be a ")


def test_what_is_damaged_names_its_own_file_and_leaves_the_state_empty(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"
    path.write_bytes(b"?")
    checkpoint = Checkpoint(path)
    with pytest.raises(CheckpointDamaged) as refused:
        checkpoint.load()
    assert refused.value.path == path
    assert checkpoint.state == SlotState()
