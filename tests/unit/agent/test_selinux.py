"""On a node with SELinux, files for containers get labels with which containers may use them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vgpu_nodeagent.enforcement.selinux import label_state
from vgpu_nodeagent.enforcement.usage_folders import PlainFolders

READ_ONLY = b"system_u:object_r:container_ro_file_t:s0\0"
WRITABLE = b"system_u:object_r:container_file_t:s0\0"


class Labels:
    """The labels of a simulated file system, by path.

    Attributes:
        there_are: False on a node without SELinux.
        types: The types that the policy knows.
        given: The labels that were set.
    """

    def __init__(self) -> None:
        self.there_are = True
        self.types: tuple[bytes, ...] = (READ_ONLY, WRITABLE)
        self.given: dict[Path, bytes] = {}

    def get(self, path: Path, attribute: str, *, follow_symlinks: bool) -> bytes:
        assert (attribute, follow_symlinks) == ("security.selinux", False)
        if not self.there_are:
            raise OSError(errno.ENODATA, "No data available")
        return self.given.get(path, b"system_u:object_r:var_lib_t:s0\0")

    def set(self, path: Path, attribute: str, value: bytes, *, follow_symlinks: bool) -> None:
        assert (attribute, follow_symlinks) == ("security.selinux", False)
        assert path.exists()
        if value not in self.types:
            raise OSError(errno.EINVAL, "Invalid argument")
        self.given[path] = value


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> Labels:
    found = Labels()
    monkeypatch.setattr(os, "getxattr", found.get)
    monkeypatch.setattr(os, "setxattr", found.set)
    return found


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state of an agent that labelled nothing."""
    for name in ("lib/libvgpu-1.so", "slots/a/limits", "slots/a/usage/region", "slots.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def test_only_usage_regions_are_writable_and_the_agents_own_files_are_left_alone(
    labels: Labels, state: Path
) -> None:
    label_state(state)
    assert {str(path.relative_to(state)): value for path, value in labels.given.items()} == {
        "lib": READ_ONLY,
        "lib/libvgpu-1.so": READ_ONLY,
        "slots": READ_ONLY,
        "slots/a": READ_ONLY,
        "slots/a/limits": READ_ONLY,
        "slots/a/usage": WRITABLE,
        "slots/a/usage/region": WRITABLE,
    }


def test_a_new_usage_folder_is_writable(labels: Labels, tmp_path: Path) -> None:
    PlainFolders().make(tmp_path / "slots" / "b" / "usage")
    assert labels.given == {tmp_path / "slots" / "b" / "usage": WRITABLE}


def test_nothing_is_labelled_on_a_node_without_selinux(
    labels: Labels, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels.there_are = False
    label_state(state)
    PlainFolders().make(state / "slots" / "b" / "usage")
    assert (labels.given, caplog.records) == ({}, [])


def test_a_policy_without_types_for_containers_is_logged_and_stops_nothing(
    labels: Labels, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels.types = ()
    label_state(state)
    assert [record.getMessage() for record in caplog.records] == [
        f"SELinux: cannot label {state}/lib as container_ro_file_t: Invalid argument"
    ]
