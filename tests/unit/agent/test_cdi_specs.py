from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vgpu_nodeagent.config import Mount
from vgpu_nodeagent.discovery.drivers.device_nodes import DeviceNode
from vgpu_nodeagent.enforcement.cdi import Edits, SpecFolder
from vgpu_nodeagent.enforcement.library import stage_library
from vgpu_nodeagent.state import cdi_device as cdi

EDITS = Edits(
    {"A": "1"}, [Mount("/host/lib", "/lib"), Mount("/u", "/w", False)], [DeviceNode("/dev/nvidia0")]
)


def test_a_spec_names_one_device_with_all_that_its_container_gets(tmp_path: Path) -> None:
    SpecFolder(tmp_path / "cdi").write("slot-1-abc", EDITS)
    (path,) = (tmp_path / "cdi").iterdir()
    assert path.name == "vgpu.dev-slot_slot-1-abc.json"
    spec = json.loads(path.read_text())
    assert (spec["kind"], spec["cdiVersion"]) == ("vgpu.dev/slot", "0.6.0")
    (device,) = spec["devices"]
    edits = device["containerEdits"]
    assert device["name"] == "slot-1-abc"
    assert edits["env"] == ["A=1"]
    assert edits["deviceNodes"] == [{"path": "/dev/nvidia0"}]
    assert [m["options"][0] for m in edits["mounts"]] == ["ro", "rw"]


def test_vendor_and_class_have_more_than_one_letter_which_would_kill_containerd() -> None:
    for kind in cdi.KINDS:
        vendor, class_name = kind.split("/")
        assert len(vendor) > 1
        assert len(class_name) > 1


def test_the_temporary_file_lies_in_the_same_folder_and_is_no_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[tuple[Path, Path]] = []
    monkeypatch.setattr(os, "rename", lambda old, new: renamed.append((old, new)))
    SpecFolder(tmp_path).write("slot-1-abc", EDITS)
    ((old, new),) = renamed
    assert old.parent == new.parent
    assert old.suffix not in (".json", ".yaml")


def test_what_an_agent_was_killed_over_is_found_and_goes_with_the_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """An exception in place of SIGKILL, after which no code of the program runs."""

    def die(*_: object) -> None:
        raise Killed

    specs = SpecFolder(tmp_path)
    monkeypatch.setattr(os, "rename", die)
    with pytest.raises(Killed):
        specs.write("slot-1-abc", EDITS)
    assert len(list(tmp_path.iterdir())) == 1
    assert specs.allocations() == {"slot-1-abc"}
    specs.remove("slot-1-abc")
    assert list(tmp_path.iterdir()) == []


def test_a_spec_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        SpecFolder(tmp_path).write("slot-1-abc", EDITS)
    assert list(tmp_path.iterdir()) == []


def test_removing_is_repeatable_and_leaves_other_peoples_specs(tmp_path: Path) -> None:
    folder = SpecFolder(tmp_path)
    (tmp_path / "nvidia.json").write_text("{}")
    folder.write("slot-1-abc", EDITS)
    assert folder.allocations() == {"slot-1-abc"}
    folder.remove("slot-1-abc")
    folder.remove("slot-1-abc")
    assert [path.name for path in tmp_path.iterdir()] == ["nvidia.json"]


@pytest.mark.parametrize(
    ("device", "allocation"),
    [
        ("vgpu.dev/slot=slot-1-abc", "slot-1-abc"),
        ("vgpu.dev/slot=", None),
        ("nvidia.com/gpu=0", None),
        ("", None),
    ],
)
def test_only_our_own_devices_are_taken_for_allocations(
    device: str, allocation: str | None
) -> None:
    assert cdi.allocation_of(device) == allocation


def test_another_build_of_the_library_gets_another_name(tmp_path: Path) -> None:
    source = tmp_path / "libvgpu.so"
    source.write_bytes(b"one")
    one = stage_library(source, tmp_path / "lib")
    before = Path(one.mounts[0].host_path).stat().st_ino
    source.write_bytes(b"two")
    two = stage_library(source, tmp_path / "lib")
    assert one.build != two.build
    assert Path(one.mounts[0].host_path).read_bytes() == b"one"
    source.write_bytes(b"one")
    assert stage_library(source, tmp_path / "lib") == one
    assert Path(one.mounts[0].host_path).stat().st_ino == before
    preload = Path(two.mounts[1].host_path).read_text().strip()
    assert preload == two.mounts[0].container_path == f"/usr/local/vgpu/libvgpu-{two.build}.so"


def test_behind_the_name_of_the_driver_a_limited_container_finds_the_shadow(
    tmp_path: Path,
) -> None:
    source = tmp_path / "libvgpu.so"
    source.write_bytes(b"library")
    driver = [
        Mount("/host/libcuda.so.570.1", "/lib/libcuda.so.570.1"),
        Mount("/host/libcuda.so.570.1", "/lib/libcuda.so.1"),
        Mount("/host/libnvidia-ml.so.1", "/lib/libnvidia-ml.so.1"),
    ]
    without = stage_library(source, tmp_path / "lib")
    assert without.before(driver) == (*driver, *without.mounts)

    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "libcuda.so.1").write_bytes(b"shadow")
    library = stage_library(source, tmp_path / "lib")
    found = {mount.container_path: Path(mount.host_path) for mount in library.before(driver)}
    assert found["/lib/libcuda.so.1"].read_bytes() == b"shadow"
    assert found["/lib/libcuda.so.570.1"].read_bytes() == b"shadow"
    assert found["/lib/libnvidia-ml.so.1"] == Path("/host/libnvidia-ml.so.1")
    assert found["/usr/local/vgpu/libcuda-driver.so.1"] == Path("/host/libcuda.so.570.1")
    assert found["/usr/local/vgpu/libvgpu.so"] == Path(library.mounts[0].host_path)
    assert library.before([]) == library.mounts
