"""The agent finds the driver's files, and no limited container gets `libcuda` itself."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_nodeagent.__main__ import parse
from vgpu_nodeagent.config import Mount
from vgpu_nodeagent.discovery.drivers.device_nodes import nodes_of_device
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver
from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.allocations import Allocations, HostFolders
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.driver_files import (
    InstalledDriver,
    cached_libraries,
    driver_source,
)
from vgpu_nodeagent.enforcement.grants import ContainerGrant
from vgpu_nodeagent.enforcement.library import stage_library
from vgpu_nodeagent.enforcement.page import DeviceLimit
from vgpu_nodeagent.errors import DriverFilesMissing, DriverUnavailable

VERSION = "570.86.15"
UUID = "GPU-00000000-0000-0000-0000-000000000000"
MACHINES = {"x86_64": 62, "aarch64": 183}
DEBIAN, REDHAT = PurePosixPath("usr/lib/x86_64-linux-gnu"), PurePosixPath("usr/lib64")


def elf(machine: str = "x86_64", bits: int = 64) -> bytes:
    return b"\x7fELF" + bytes([bits // 32]) + bytes(13) + MACHINES[machine].to_bytes(2, "little")


def install(
    host: Path,
    root: str = "/",
    folder: PurePosixPath = DEBIAN,
    *,
    version: str = VERSION,
    content: bytes | None = None,
) -> Path:
    """Install a driver of a version below a root, and return its folder."""
    place = host / root.lstrip("/") / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, link in (
        ("libcuda.so", "libcuda.so.1"),
        ("libnvidia-ml.so", "libnvidia-ml.so.1"),
        ("libnvidia-nvvm.so", "libnvidia-nvvm.so.4"),
        ("libGLX_nvidia.so", "libGLX_nvidia.so.0"),
    ):
        (place / f"{name}.{version}").write_bytes(elf() if content is None else content)
        (place / link).unlink(missing_ok=True)
        (place / link).symlink_to(f"{name}.{version}")
    return place


def installed(host: Path, *roots: str) -> InstalledDriver:
    return InstalledDriver([PurePosixPath(r) for r in roots or ("/",)], host=host, machine="x86_64")


def by_container(driver: InstalledDriver) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in driver.files().mounts}


@pytest.mark.parametrize("folder", [DEBIAN, REDHAT, PurePosixPath("usr/local/nvidia/lib64")])
@pytest.mark.parametrize("root", ["/", "/run/nvidia/driver"])
def test_a_driver_is_found_below_each_root_and_shown_where_images_look(
    tmp_path: Path, root: str, folder: PurePosixPath
) -> None:
    install(tmp_path, root, folder)
    driver = installed(tmp_path, "/", "/run/nvidia/driver")
    found = by_container(driver)
    cuda = str(PurePosixPath(root, folder, f"libcuda.so.{VERSION}"))
    for place in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        for name in ("libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"):
            assert found[f"{place}/{name}"] == cuda
        assert found[f"{place}/libnvidia-nvvm.so.4"].endswith(f"libnvidia-nvvm.so.{VERSION}")
    assert not [name for name in found if "GLX" in name]
    files = driver.files()
    assert files.complete
    nvml = tmp_path / root.lstrip("/") / folder / f"libnvidia-ml.so.{VERSION}"
    assert files.nvml == nvml


def test_the_first_root_with_a_driver_counts(tmp_path: Path) -> None:
    install(tmp_path, "/run/nvidia/driver")
    install(tmp_path, "/")
    found = by_container(installed(tmp_path, "/run/nvidia/driver", "/"))
    assert {path.startswith("/run/nvidia/driver/") for path in found.values()} == {True}


def test_files_that_another_version_left_behind_are_not_given(tmp_path: Path) -> None:
    place = install(tmp_path)
    (place / "libnvidia-ptxjitcompiler.so.535.1.1").write_bytes(elf())
    (place / "libnvidia-ptxjitcompiler.so.1").symlink_to("libnvidia-ptxjitcompiler.so.535.1.1")
    assert not [name for name in by_container(installed(tmp_path)) if "ptxjit" in name]


@pytest.mark.parametrize("content", [elf("aarch64"), elf(bits=32), b"", b"a linker script"])
def test_a_library_for_another_machine_is_passed_over(tmp_path: Path, content: bytes) -> None:
    install(tmp_path, folder=REDHAT)
    install(tmp_path, folder=DEBIAN, content=content)
    assert set(by_container(installed(tmp_path)).values()) == {
        f"/{REDHAT}/{name}.{VERSION}"
        for name in ("libcuda.so", "libnvidia-ml.so", "libnvidia-nvvm.so")
    }


def test_links_lead_to_files_below_the_same_root(tmp_path: Path) -> None:
    """An absolute link, as of `/etc/alternatives`, refers to the driver's root and not to ours."""
    install(tmp_path, "/run/nvidia/driver", PurePosixPath("opt/driver"))
    usual = tmp_path / "run/nvidia/driver" / DEBIAN
    usual.mkdir(parents=True)
    (usual / "libcuda.so.1").symlink_to("/opt/driver/libcuda.so.1")
    found = by_container(installed(tmp_path, "/run/nvidia/driver"))
    inside = found["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
    assert inside == f"/run/nvidia/driver/opt/driver/libcuda.so.{VERSION}"


def test_links_in_a_circle_are_no_driver(tmp_path: Path) -> None:
    place = tmp_path / DEBIAN
    place.mkdir(parents=True)
    (place / "libcuda.so.1").symlink_to("libcuda.so.2")
    (place / "libcuda.so.2").symlink_to("libcuda.so.1")
    with pytest.raises(DriverFilesMissing):
        installed(tmp_path).files()


def test_an_upgrade_while_the_agent_runs_gives_the_new_driver(tmp_path: Path) -> None:
    install(tmp_path)
    driver = installed(tmp_path)
    assert by_container(driver)["/usr/lib64/libcuda.so.1"].endswith(VERSION)
    for file in (tmp_path / DEBIAN).iterdir():
        file.unlink()
    with pytest.raises(DriverFilesMissing, match=r"no libcuda\.so\.1 for x86_64 .* below /: "):
        driver.files()
    install(tmp_path, version="580.1.2")
    assert by_container(driver)["/usr/lib64/libcuda.so.1"].endswith("580.1.2")


def test_the_loaders_cache_is_read_as_ldconfig_reads_it() -> None:
    listed: dict[str, list[str]] = {}
    lines = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for line in lines:
        name, arrow, path = line.strip().partition(" => ")
        if arrow:
            listed.setdefault(name.split(" (")[0], []).append(path)
    assert listed
    assert cached_libraries(Path("/etc/ld.so.cache").read_bytes()) == listed


def test_a_folder_that_only_the_loaders_cache_names_is_searched(tmp_path: Path) -> None:
    install(tmp_path, folder=PurePosixPath("opt/nvidia/lib"))
    strings = b"libcuda.so.1\0/opt/nvidia/lib/libcuda.so.1\0"
    at = 48 + 24
    entry = (3).to_bytes(4, "little") + at.to_bytes(4, "little") + (at + 13).to_bytes(4, "little")
    header = (
        b"glibc-ld.so.cache1.1" + (1).to_bytes(4, "little") + len(strings).to_bytes(4, "little")
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(header + bytes(20) + entry + bytes(12) + strings)
    assert "/usr/lib64/libcuda.so.1" in by_container(installed(tmp_path))


@given(st.binary(max_size=400), st.integers(0, 200))
def test_no_content_of_the_loaders_cache_makes_the_agent_fail(noise: bytes, at: int) -> None:
    """For any bytes the result is a mapping of strings, never an exception."""
    cache = noise[:at] + b"glibc-ld.so.cache1.1" + noise[at:]
    for name, paths in cached_libraries(cache).items():
        assert isinstance(name, str)
        assert all(isinstance(path, str) for path in paths)


LIMITED = ContainerGrant((DeviceLimit(UUID, 1 << 30, 50),), interposed=True)
WHOLE = ContainerGrant((DeviceLimit(UUID, 1 << 30, 0),), interposed=False)


@pytest.fixture
def allocations(tmp_path: Path) -> Allocations:
    """Return allocations with a library, its shadow and an installed driver."""
    (tmp_path / "lib/shadow").mkdir(parents=True)
    (tmp_path / "lib/libvgpu.so").write_bytes(b"library")
    (tmp_path / "lib/shadow/libcuda.so.1").write_bytes(b"shadow")
    install(tmp_path / "host")
    made = Allocations(
        tmp_path / "slots",
        SpecFolder(tmp_path / "cdi"),
        library=stage_library(tmp_path / "lib/libvgpu.so", tmp_path / "staged"),
        driver=installed(tmp_path / "host"),
        host=HostFolders(dev=tmp_path / "dev"),
    )
    made.create("slot-1")
    return made


def edits(tmp_path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the mounts by container path and the environment of the only CDI spec."""
    (path,) = (tmp_path / "cdi").glob("*.json")
    (device,) = json.loads(path.read_text())["devices"]
    found = device["containerEdits"]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in found["mounts"]}
    assert len(mounts) == len(found["mounts"])  # no path twice, because the last mount would win
    return mounts, found["env"]


def test_behind_every_name_of_an_installed_driver_a_limited_container_finds_the_shadow(
    allocations: Allocations, tmp_path: Path
) -> None:
    allocations.check("slot-1")
    allocations.open("slot-1", LIMITED, nodes={UUID: ()})
    mounts, env = edits(tmp_path)
    names = [path for path in mounts if path.rpartition("/")[2].startswith("libcuda.so")]
    assert len(names) == 6
    assert {Path(mounts[name]).read_bytes() for name in names} == {b"shadow"}
    real = mounts["/usr/local/vgpu/libcuda-driver.so.1"]
    assert real == f"/{DEBIAN}/libcuda.so.{VERSION}"
    assert "NVIDIA_VISIBLE_DEVICES=void" in env  # NVIDIA's runtime mounts nothing over it


def test_a_container_with_a_whole_device_gets_the_driver_itself(
    allocations: Allocations, tmp_path: Path
) -> None:
    allocations.open("slot-1", WHOLE, nodes={UUID: ()})
    mounts, _ = edits(tmp_path)
    assert mounts["/usr/lib64/libcuda.so.1"] == f"/{DEBIAN}/libcuda.so.{VERSION}"
    assert "/usr/local/vgpu/libcuda-driver.so.1" not in mounts


@pytest.mark.parametrize("grant", [LIMITED, WHOLE])
def test_of_the_control_nodes_a_container_gets_those_that_compute_needs(
    allocations: Allocations, tmp_path: Path, grant: ContainerGrant
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("0", "1", "ctl", "-uvm", "-uvm-tools", "-modeset"):
        (tmp_path / "dev" / f"nvidia{name}").touch()
    allocations.open("slot-1", grant, nodes={UUID: nodes_of_device(0)})
    (path,) = (tmp_path / "cdi").glob("*.json")
    (device,) = json.loads(path.read_text())["devices"]
    paths = {node["path"] for node in device["containerEdits"]["deviceNodes"]}
    assert paths == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}


def test_without_a_driver_nothing_is_opened(allocations: Allocations, tmp_path: Path) -> None:
    for file in (tmp_path / "host" / DEBIAN).iterdir():
        file.unlink()
    with pytest.raises(DriverFilesMissing):
        allocations.check("slot-1")
    with pytest.raises(DriverFilesMissing):
        allocations.open("slot-1", LIMITED, nodes={UUID: ()})
    assert allocations.content("slot-1").state is PageState.DENY
    assert not list((tmp_path / "cdi").glob("*.json"))


async def test_devices_that_no_container_could_use_are_not_offered(tmp_path: Path) -> None:
    driver = NvidiaDriver(nvml=lambda: installed(tmp_path).files().nvml)
    with pytest.raises(DriverUnavailable, match="install the driver, or name its root"):
        await driver.devices()
    driver.close()


def test_roots_and_files_of_the_command_line_are_used_together(tmp_path: Path) -> None:
    install(tmp_path / "host", content=Path("/proc/self/exe").read_bytes()[:20])
    made = parse(
        [
            "--node-name=n1",
            "--library=/proc/self/exe",
            f"--host-root={tmp_path}/host",
            "--driver-root=/run/nvidia/driver",
            "--driver-root=/",
            "--driver-file=/etc/x:/y",
        ]
    )
    source = driver_source(made.driver_roots, made.host_root, made.driver_files)
    mounts = source.files().mounts
    assert Mount("/etc/x", "/y") in mounts
    assert f"/{DEBIAN}/libcuda.so.{VERSION}" in {m.host_path for m in mounts}
    assert made.host_root == tmp_path / "host"


def test_a_root_that_is_no_absolute_path_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--node-name=n1", "--library=/proc/self/exe", "--driver-root=run/nvidia"])
    assert "Invalid value: run/nvidia: must be an absolute path" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
