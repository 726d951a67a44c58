"""`clean` removes everything that agents wrote on a host, and nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vgpu_nodeagent import clean_command
from vgpu_nodeagent.clean_command import HostPlaces, clean
from vgpu_nodeagent.enforcement.cdi import Edits, SpecFolder
from vgpu_nodeagent.state.serving_lock import ServingLock


class Host:
    """The folders of a host on which an agent has run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "lib" / "vgpu"
        self.cdi = root / "cdi"
        self.kubelet = root / "kubelet"
        self.device_plugins = self.kubelet / "device-plugins"
        (self.state / "slots" / "slot-1-abc" / "usage").mkdir(parents=True)
        (self.state / "slots.json").write_text("{}")
        (self.state / "lib").mkdir()
        plugins = self.device_plugins
        plugins.mkdir(parents=True)
        (plugins / "vgpu.sock").touch()
        driver, registry = self.kubelet / "plugins" / "vgpu.dev", self.kubelet / "plugins_registry"
        driver.mkdir(parents=True)
        registry.mkdir()
        (driver / "pod-uid.sock").touch()
        (registry / "vgpu.dev-pod-uid-reg.sock").touch()
        self.foreign = [
            plugins / "other.sock",
            registry / "csi.example.com-reg.sock",
            self.cdi / "nvidia.yaml",
            root / "lib" / "other",
        ]
        SpecFolder(self.cdi).write("slot-1-abc", Edits({}, [], []))
        SpecFolder(self.cdi).write("share-abc", Edits({}, [], []))
        for path in self.foreign:
            path.touch()

    def clean(self) -> list[str]:
        return clean(
            self.state, HostPlaces(self.cdi, self.device_plugins, self.kubelet), wait_s=0.05
        )

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if not path.is_dir())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_everything_of_ours_goes_and_everything_else_stays(host: Host) -> None:
    done = host.clean()
    assert host.files() == sorted(host.foreign)
    assert not host.state.exists()
    assert "CDI spec of slot-1-abc" in done
    assert "CDI spec of share-abc" in done
    assert not (host.kubelet / "plugins" / "vgpu.dev").exists()


def test_a_second_run_finds_nothing_to_do(host: Host) -> None:
    host.clean()
    assert host.clean() == []


def test_what_lies_outside_and_is_linked_into_the_state_stays(host: Host) -> None:
    outside = host.root / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (host.state / "slots" / "link").symlink_to(outside)
    host.clean()
    assert (outside / "kept").exists()


def test_while_an_agent_serves_nothing_is_touched(host: Host) -> None:
    serving = ServingLock(host.state)
    asyncio.run(serving.acquire())
    before = host.files()
    with pytest.raises(TimeoutError, match="an agent still serves this node"):
        host.clean()
    assert host.files() == before
    serving.release()
    host.clean()
    assert not host.state.exists()


def test_a_state_folder_that_is_a_whole_tree_of_the_host_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        clean_command.main(["--state-dir=/var"])
    assert "--state-dir: Invalid value: /var" in capsys.readouterr().err


def test_the_command_takes_what_the_agents_were_given(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [f"--state-dir={host.state}", f"--cdi-dir={host.cdi}", "--host-root=/host"]
    folders.append(f"--kubelet-dir={host.kubelet}")
    assert clean_command.main([*folders, "--device-plugins-dir", str(host.device_plugins)]) == 0
    assert str(host.state) in capsys.readouterr().out
    assert host.files() == sorted(host.foreign)


def test_what_cannot_be_removed_is_a_failure_with_its_name(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(clean_command.shutil, "rmtree", refuse)
    folders = [f"--state-dir={host.state}", f"--cdi-dir={host.cdi}"]
    assert clean_command.main([*folders, "--device-plugins-dir", str(host.device_plugins)]) == 1
    assert "Read-only file system" in capsys.readouterr().err
    assert asyncio.run(_can_serve(host.state))


async def _can_serve(state: Path) -> bool:
    lock = ServingLock(state)
    async with asyncio.timeout(1):
        await lock.acquire()
    lock.release()
    return True


def waits_for_a_signal(process: subprocess.Popen[bytes]) -> bool:
    """Return True if the process handles SIGTERM and would not be ended by it."""
    return "sigtimedwait" in Path(f"/proc/{process.pid}/wchan").read_text()


def test_the_cleaners_container_stays_until_it_is_asked_to_end() -> None:
    command = [sys.executable, "-m", "vgpu_nodeagent", "clean", "--stay"]
    with subprocess.Popen(command) as staying:
        deadline = time.monotonic() + 60
        while not waits_for_a_signal(staying):
            assert time.monotonic() < deadline
            with pytest.raises(subprocess.TimeoutExpired):
                staying.wait(timeout=0.05)
        staying.terminate()
        assert staying.wait(timeout=60) == 0
