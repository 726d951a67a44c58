"""A process uses an allocation, does not use it, or cannot be read, which counts as use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu_nodeagent.enforcement.processes import ProcessTable, processes_mapping, processes_of_pod
from vgpu_nodeagent.enforcement.region import create_region

POD = "0f5a3c1e-1111-4222-8333-444455556666"
OTHER = "9e8d7c6b-1111-4222-8333-444455556666"
OURS = f"/kubepods.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/c"
THEIRS = f"/kubepods/burstable/pod{OTHER}/c"
HOST = "/system.slice/sshd.service"


class Proc:
    """A folder like /proc, in which a file that may not be read is a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir()
        (root / "self").mkdir()

    def add(self, pid: int, *, cgroup: str = HOST, maps: str | None = "") -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        if maps is None:
            (folder / "maps").mkdir()  # reading fails although the process exists
        else:
            (folder / "maps").write_text(maps)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.fixture
def region(tmp_path: Path) -> Path:
    path = tmp_path / "region"
    create_region(path)
    return path


def line(inode: int, name: str = "region") -> str:
    return f"7f0-7f1 rw-s 00000000 fe:01 {inode}   /usr/local/vgpu/usage/{name}\n"


def users(proc: Proc, *paths: Path, pod_uid: str = POD) -> ProcessTable:
    return processes_mapping(paths, pod_uid=pod_uid, proc=proc.root)


def test_processes_that_map_a_region_are_found_by_its_inode(proc: Proc, region: Path) -> None:
    inode = region.stat().st_ino
    proc.add(10, maps=line(inode))
    proc.add(11, maps=line(inode + 1))
    proc.add(12, maps="7f0-7f1 rw-p 00000000 00:00 0\n")
    (proc.root / "13").mkdir()  # the process has just ended
    assert users(proc, region) == ProcessTable(certain=frozenset({10}))


def test_any_of_the_files_tells(proc: Proc, region: Path, tmp_path: Path) -> None:
    page = tmp_path / "limits"
    page.touch()
    proc.add(10, maps=line(page.stat().st_ino, "limits"))
    region.unlink()  # a container can do that
    assert users(proc, page, region).certain == {10}


def test_a_process_of_the_pod_that_cannot_be_looked_into_may_be_using_it(
    proc: Proc, region: Path
) -> None:
    proc.add(10, cgroup=OURS, maps=None)
    found = users(proc, region)
    assert found == ProcessTable(unknown=frozenset({10}))
    assert found


@pytest.mark.parametrize("cgroup", [THEIRS, HOST, f"/../../pod{OTHER}/c"])
def test_a_process_that_is_surely_not_the_pods_need_not_be_looked_into(
    proc: Proc, region: Path, cgroup: str
) -> None:
    proc.add(1, cgroup=THEIRS)
    proc.add(10, cgroup=cgroup, maps=None)
    assert not users(proc, region)


@pytest.mark.parametrize("pod_uid", [POD, ""])
def test_a_process_in_some_pod_that_nothing_names_may_be_using_it(
    proc: Proc, region: Path, pod_uid: str
) -> None:
    proc.add(10, cgroup="/kubepods/burstable/odd/c", maps=None)
    assert users(proc, region, pod_uid=pod_uid).unknown == {10}


def test_where_no_pod_is_known_a_process_of_any_pod_may_be_using_it(
    proc: Proc, region: Path
) -> None:
    proc.add(10, cgroup=THEIRS, maps=None)
    assert users(proc, region, pod_uid="").unknown == {10}


def test_without_cgroups_of_pods_any_process_that_root_may_not_look_into_may_be_using_it(
    proc: Proc, region: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(10, maps=None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert users(proc, region).unknown == {10}


def test_the_first_process_of_the_machine_is_no_container(proc: Proc, region: Path) -> None:
    """Some sandboxes allow nobody, not even root, to inspect it, and it never ends."""
    proc.add(1, cgroup="/", maps=None)
    assert not users(proc, region)


def test_without_cgroups_of_pods_a_plain_users_containers_are_its_own_processes(
    proc: Proc, region: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a user runs all containers under its own name and may inspect what it runs."""
    proc.add(10, maps=None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not users(proc, region)


def test_the_agents_own_ancestors_use_nothing(
    proc: Proc, region: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is the machine's first process, which has rights that the agent lacks."""
    proc.add(1, maps=None)
    proc.add(7, maps=None)
    (proc.root / "1" / "stat").write_text("1 (init) S 0 1 1 0\n")
    (proc.root / "7" / "stat").write_text("7 (a (b) c) S 1 7 7 0\n")
    (proc.root / "self" / "stat").write_text("9 (agent) S 7 9 9 0\n")
    proc.add(10, maps=None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert users(proc, region).unknown == {10}


def test_processes_of_a_pod_are_found_by_its_cgroup_however_that_is_written(proc: Proc) -> None:
    proc.add(10, cgroup=OURS, maps=None)
    proc.add(11, cgroup=f"/kubepods/besteffort/pod{POD}/c", maps=None)
    proc.add(12, cgroup=THEIRS)
    proc.add(13)
    assert processes_of_pod(POD, proc=proc.root) == {10, 11}
