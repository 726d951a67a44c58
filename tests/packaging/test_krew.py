"""krew accepts the plugin's manifest, and the archive has the files that it names."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from release import krew
from release.__main__ import pack

BASE = "https://example.org/releases/1.2.3"
# Rules of krew's own validation (internal/index/validation) and naming guide.
SEMVER = re.compile(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
MOST_OF_A_SHORT_DESCRIPTION = 50


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("krew")
    wheel = folder / "vgpu-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return pack(folder, "1.2.3", krew.contents("1.2.3", wheel, "orjson==1 --hash=sha256:00\n"))


@pytest.fixture(scope="module")
def spec(archive: Path) -> Mapping[str, Any]:
    plugin = yaml.safe_load(krew.manifest("1.2.3", archive, BASE))
    assert plugin["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert plugin["kind"] == "Plugin"
    assert plugin["metadata"] == {"name": "vgpu"}
    found: Mapping[str, Any] = plugin["spec"]
    return found


def test_the_manifest_meets_krews_rules(spec: Mapping[str, Any]):
    assert SEMVER.fullmatch(spec["version"])
    assert 0 < len(spec["shortDescription"]) <= MOST_OF_A_SHORT_DESCRIPTION
    assert "\n" not in spec["shortDescription"]
    assert spec["homepage"] == BASE
    assert spec["platforms"]
    for platform in spec["platforms"]:
        assert set(platform) == {"selector", "uri", "sha256", "bin", "files"}
        expressions = platform["selector"]["matchExpressions"]
        assert {each["key"] for each in expressions} == {"os", "arch"}
        assert all(each["operator"] == "In" and each["values"] for each in expressions)
        assert all(each["from"] and each["to"] for each in platform["files"])


def test_each_platform_names_the_archive_and_its_digest(spec: Mapping[str, Any], archive: Path):
    for platform in spec["platforms"]:
        assert platform["uri"] == f"{BASE}/{archive.name}"
        assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()


def test_the_archive_has_every_installed_file(spec: Mapping[str, Any], archive: Path):
    with tarfile.open(archive) as packed:
        modes = {entry.name: entry.mode for entry in packed.getmembers()}
    for platform in spec["platforms"]:
        (operation,) = platform["files"]
        taken = {Path(name).name: modes[name] for name in modes if fnmatch(name, operation["from"])}
        assert set(taken) >= {platform["bin"], "LICENSE", "requirements.txt"}
        assert operation["to"] == "."
        assert taken[platform["bin"]] & 0o111


class Unpacked:
    """The archive's files, and a PATH with only the programs that the launcher may rely on."""

    def __init__(self, archive: Path, folder: Path) -> None:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        self.launcher = folder / "kubectl-vgpu-1.2.3" / "kubectl-vgpu"
        self.path = folder / "bin"
        self.cache = folder / "cache"
        self.path.mkdir()
        for tool in ("sh", "readlink", "dirname", "mkdir", "rm"):
            found = next(p for p in ("/bin", "/usr/bin") if os.path.exists(f"{p}/{tool}"))
            (self.path / tool).symlink_to(f"{found}/{tool}")

    def program(self, name: str, text: str) -> None:
        """Put a program on the PATH."""
        path = self.path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the launcher."""
        environment = {"PATH": str(self.path), "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.run(
            [self.launcher, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def unpacked(archive: Path, tmp_path: Path) -> Unpacked:
    return Unpacked(archive, tmp_path)


def test_a_machine_without_python_gets_an_error_of_one_line(unpacked: Unpacked):
    done = unpacked.run("get")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("kubectl vgpu: python3 is not in PATH; Python 3.11 or newer is needed\n")


def test_an_older_python_is_refused(unpacked: Unpacked):
    unpacked.program("python3", "exit 1")
    done = unpacked.run("get")
    assert done.returncode == 1
    assert "older than 3.11" in done.stderr


def test_an_installation_that_fails_leaves_nothing(unpacked: Unpacked):
    unpacked.program("python3", '[ "$1" = -c ] || { mkdir -p "$3"; exit 1; }')
    done = unpacked.run("get")
    assert done.returncode == 1
    assert done.stderr.endswith("kubectl vgpu: it could not be installed\n")
    assert not (unpacked.cache / "kubectl-vgpu" / "1.2.3").exists()


def test_the_installed_program_gets_the_arguments_unchanged(unpacked: Unpacked):
    unpacked.program("python3", "exit 0")
    home = unpacked.cache / "kubectl-vgpu" / "1.2.3" / "bin"
    home.mkdir(parents=True)
    installed = home / "kubectl-vgpu"
    installed.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    installed.chmod(0o755)
    done = unpacked.run("explain", "a b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "explain|a b|", "")
