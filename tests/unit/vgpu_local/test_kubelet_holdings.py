from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_local.kubelet.checkpoint import write_checkpoint
from vgpu_local.kubelet.holdings import AdmissionError, Holding, Holdings, pick

SLOTS = [f"slot-{i}" for i in range(8)]
IDS = st.sets(st.sampled_from(SLOTS))


@given(IDS, IDS, st.integers(1, 8), st.integers())
def test_picked_devices_are_healthy_free_and_as_many_as_needed(healthy, in_use, needed, seed):
    """Invariant: exactly `needed` distinct ids, all healthy, none held by another pod."""
    reusable = {i for i in in_use if i in ("slot-0", "slot-1")}
    order = random.Random(seed)
    try:
        ids = pick(
            resource="r/x",
            needed=needed,
            healthy=healthy,
            in_use=in_use,
            reusable=reusable,
            order=order,
        )
    except AdmissionError:
        assert len((healthy - in_use) | (healthy & reusable)) < needed
        return
    assert len(set(ids)) == needed
    assert set(ids) <= healthy
    assert not set(ids) & (in_use - reusable)


def test_devices_of_an_init_container_are_used_again_before_free_ones():
    ids = pick(
        resource="r/x",
        needed=2,
        healthy=SLOTS,
        in_use=["slot-3"],
        reusable=["slot-3"],
        order=random.Random(0),
    )
    assert "slot-3" in ids


def test_a_refusal_says_how_many_devices_there_were():
    with pytest.raises(AdmissionError, match=r"unavailable for r/x. Requested: 2, Available: 1"):
        pick(
            resource="r/x",
            needed=2,
            healthy=["a"],
            in_use=[],
            reusable=[],
            order=random.Random(0),
        )


def a_holding(pod: str = "uid-1", container: str = "main") -> Holding:
    return Holding(pod, container, "r/x", ("slot-1", "slot-2"), ((0,), ()), b"\x2a\x03abc")


def test_only_pods_that_are_no_longer_active_are_forgotten():
    holdings = Holdings()
    holdings.add(a_holding("uid-1"))
    holdings.add(a_holding("uid-2"))
    assert holdings.keep_only({"uid-2"})
    assert [h.pod_uid for h in holdings] == ["uid-2"]
    assert not holdings.keep_only({"uid-2"})


def test_the_checkpoint_has_the_format_of_the_kubelets_own(tmp_path: Path):
    path = tmp_path / "kubelet_internal_checkpoint"
    write_checkpoint(path, [a_holding()], {"r/x": {"slot-2", "slot-1"}})
    document = json.loads(path.read_text())
    assert document["Data"] == {
        "PodDeviceEntries": [
            {
                "PodUID": "uid-1",
                "ContainerName": "main",
                "ResourceName": "r/x",
                "DeviceIDs": {"0": ["slot-1"], "-1": ["slot-2"]},
                "AllocResp": base64.b64encode(b"\x2a\x03abc").decode(),
            }
        ],
        "RegisteredDevices": {"r/x": ["slot-1", "slot-2"]},
    }
    assert 0 <= document["Checksum"] < 2**32
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
