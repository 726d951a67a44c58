"""krew accepts the plugin's manifest, and its archives run right after unpacking."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from release import krew
from release.__main__ import pack
from release.wheels import PLATFORMS, PYTHONS, Platform, Wheels

BASE = "https://example.org/releases/1.2.3"
# Rules of krew's own validation (internal/index/validation) and naming guide.
SEMVER = re.compile(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
MOST_OF_A_SHORT_DESCRIPTION = 50


def a_wheel(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    path = folder / f"{name}-1-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as packed:
        for each, text in files.items():
            packed.writestr(each, text)
    return path


CLI = """
import json
import sys


def main():
    if sys.argv[1:] == ["explain"]:
        import numpy
    print(*sys.argv[1:], sep="|")
    print(json.dumps([each for each in sys.path if "site-packages" in each]))
    from vgpu_api import words

    print(words.read())
"""
OURS = {
    "vgpu_api/__init__.py": "",
    "vgpu_api/words.py": "from pathlib import Path\n"
    "def read(): return Path(__file__).with_name('data.txt').read_text()\n",
    "vgpu_api/data.txt": "words of a file",
    "vgpu_operator/__init__.py": "",
    "vgpu_operator/cli/__init__.py": "",
    "vgpu_operator/cli/__main__.py": CLI,
    "vgpu_operator/cli/completion.py": "",
    "vgpu_operator/web/__init__.py": "",
    "vgpu_operator/web/page.html": "",
    "vgpu_nodeagent/__init__.py": "",
    "vgpu-1.dist-info/METADATA": "Version: 1",
}
LOCK = "numpy==2 \\\n    --hash=sha256:00\npydantic-core==1 \\\n    --hash=sha256:00\n"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Platform, Path]]:
    folder = tmp_path_factory.mktemp("krew")
    plain = a_wheel(folder, "yaml", {"yaml/__init__.py": "", "yaml/_yaml.so": "", "_yaml/a.py": ""})
    compiled = {
        (each.name, python): a_wheel(
            folder / each.name / python, "core", {"core.so": f"{each.name} {python}"}
        )
        for each in PLATFORMS
        for python in PYTHONS
    }
    wheels = Wheels([plain], compiled)
    files = krew.plain_files("1.2.3", a_wheel(folder, "vgpu", OURS), wheels, LOCK)
    return [
        (each, pack(folder, "1.2.3", each, {**files, **krew.native_files(each, wheels)}))
        for each in PLATFORMS
    ]


@pytest.fixture(scope="module")
def spec(archives: list[tuple[Platform, Path]]) -> Mapping[str, Any]:
    plugin = yaml.safe_load(krew.manifest("1.2.3", archives, BASE))
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
        assert platform["selector"]["matchLabels"].keys() == {"os", "arch"}
        assert all(each["from"] and each["to"] for each in platform["files"])


def test_linux_and_macos_on_both_processors_have_an_archive(spec: Mapping[str, Any]):
    found = [tuple(each["selector"]["matchLabels"].values()) for each in spec["platforms"]]
    assert sorted(found) == sorted(product(("linux", "darwin"), ("amd64", "arm64")))


def test_each_platform_names_its_archive_and_the_digest(
    spec: Mapping[str, Any], archives: list[tuple[Platform, Path]]
):
    for platform, (machine, archive) in zip(spec["platforms"], archives, strict=True):
        assert platform["selector"]["matchLabels"] == {"os": machine.os, "arch": machine.arch}
        assert platform["uri"] == f"{BASE}/{archive.name}"
        assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()


def test_an_archive_has_what_the_commands_load_for_its_machine_and_nothing_else(
    spec: Mapping[str, Any], archives: list[tuple[Platform, Path]]
):
    for platform, (machine, archive) in zip(spec["platforms"], archives, strict=True):
        with tarfile.open(archive) as packed:
            modes = {entry.name: entry.mode for entry in packed.getmembers()}
            core = packed.extractfile("kubectl-vgpu-1.2.3/native/3.13/core.so")
            assert core is not None
            assert core.read().decode() == f"{machine.name} 3.13"
        (operation,) = platform["files"]
        assert operation == {"from": "kubectl-vgpu-1.2.3/*", "to": "."}
        names = {name.removeprefix("kubectl-vgpu-1.2.3/") for name in modes}
        assert {name for name in names if "__pycache__" not in name} == {
            *("kubectl-vgpu", "main.py", "LICENSE", "numpy.txt", "lib/yaml/__init__.py"),
            *("lib/vgpu_api/__init__.py", "lib/vgpu_api/words.py", "lib/vgpu_api/data.txt"),
            *("lib/vgpu_operator/__init__.py", "lib/vgpu_operator/cli/__init__.py"),
            *("lib/vgpu_operator/cli/__main__.py", "lib/vgpu_operator/cli/completion.py"),
            "lib/vgpu-1.dist-info/METADATA",
            *(f"native/{python}/core.so" for python in PYTHONS),
        }
        tag = sys.implementation.cache_tag
        assert f"lib/vgpu_operator/cli/__pycache__/__main__.{tag}.pyc" in names
        assert modes[f"kubectl-vgpu-1.2.3/{platform['bin']}"] & 0o111


class Unpacked:
    """The archive's files, and a PATH with only the programs that the launcher may rely on."""

    def __init__(self, archive: Path, folder: Path) -> None:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        self.home = folder / "kubectl-vgpu-1.2.3"
        self.path = folder / "bin"
        self.cache = folder / "cache"
        self.path.mkdir()
        for tool in ("sh", "readlink"):
            found = next(p for p in ("/bin", "/usr/bin") if os.path.exists(f"{p}/{tool}"))
            (self.path / tool).symlink_to(f"{found}/{tool}")

    def program(self, name: str, text: str) -> None:
        """Put a program on the PATH."""
        path = self.path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def python(self, pip: str = "exit 1") -> None:
        """Put this Python on the PATH, with another pip."""
        self.program("python3", f'[ "$2" = pip ] || exec {sys.executable} "$@"\n{pip}')

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the launcher, by a link as krew makes it."""
        link = self.path / "kubectl-vgpu"
        link.unlink(missing_ok=True)
        link.symlink_to(self.home / "kubectl-vgpu")
        environment = {"PATH": str(self.path), "XDG_CACHE_HOME": str(self.cache), **variables}
        return subprocess.run(
            [link, *arguments], env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def unpacked(archives: list[tuple[Platform, Path]], tmp_path: Path) -> Unpacked:
    return Unpacked(archives[0][1], tmp_path)


def test_a_machine_without_python_gets_an_error_of_one_line(unpacked: Unpacked):
    done = unpacked.run("get")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("kubectl vgpu: python3 is not in PATH; Python 3.11 or newer is needed\n")


def test_a_python_without_a_compiled_package_is_refused(unpacked: Unpacked):
    unpacked.python()
    for each in (unpacked.home / "native").iterdir():
        each.rename(each.with_name(f"{each.name[0]}.9{each.name[2:]}"))
    done = unpacked.run("get")
    assert done.returncode == 1
    assert done.stderr.startswith("kubectl vgpu: Python 3.")
    assert done.stderr.endswith(" in VGPU_PYTHON\n")
    assert "3.911, 3.912" in done.stderr


def test_the_program_gets_its_arguments_unchanged_and_only_the_archives_packages(
    unpacked: Unpacked,
):
    unpacked.python()
    done = unpacked.run("get", "a b", PYTHONPATH="/somewhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "get|a b\n[]\nwords of a file\n"


def test_a_command_that_places_pods_installs_numpy_once(unpacked: Unpacked):
    install = 'for each in "$@"; do case $before in --target) to=$each;; esac; before=$each; done\n'
    unpacked.python(f'{install}/bin/mkdir -p "$to"; echo "ran = 1" >"$to/numpy.py"; echo pip ran')
    # the launcher's Python is the real one, which would run its own pip
    unpacked.home.joinpath("main.py").write_text(
        unpacked.home.joinpath("main.py")
        .read_text()
        .replace("sys.executable", repr(str(unpacked.path / "python3")))
    )
    first, second = unpacked.run("explain"), unpacked.run("explain")
    assert [first.returncode, second.returncode] == [0, 0]
    assert first.stdout == second.stdout
    assert "installing numpy" in first.stderr
    assert second.stderr == ""


def test_without_numpy_it_says_what_to_do(unpacked: Unpacked):
    unpacked.python()
    text = unpacked.home.joinpath("main.py").read_text()
    python = repr(str(unpacked.path / "python3"))
    unpacked.home.joinpath("main.py").write_text(text.replace("sys.executable", python))
    done = unpacked.run("explain")
    assert done.returncode == 1
    assert "numpy could not be installed" in done.stderr
    assert not (unpacked.cache / "kubectl-vgpu").exists()
