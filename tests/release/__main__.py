"""Write all files of a release into one folder, with their digests.

    make release IMAGES="operator=REPOSITORY@sha256:... nodeagent=..."

The folder has `manifests/` (the CRDs, the overlays default, gate and claims, and the default
overlay with each component; the one for Kubernetes before 1.36 is called so), the Helm chart, the
wheel with the commands, `kubectl vgpu` as a plugin for krew, a CycloneDX bill of materials of the
packages that the images install, and `SHA256SUMS`. Images are named by digest if `IMAGES` gives
one. The same tree and arguments make the same bytes. Everything has the version of
`pyproject.toml`, because the programs report that one.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from manual.words import ROOT
from release import krew
from release.chart import COMPONENTS, MODES, NOWHERE, chart, kustomized, project_version
from release.wheels import PLATFORMS, Platform, fetched, locked

_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
PUBLISHED_AT = "https://example.com/vgpu"
"""The default: krew needs an address, and takes `--archive` in place of it."""
_NAMED = {"agents-read-all-pods": "before-1.36"}
"""Manifests with a component that are named for their purpose."""
_OURS = ("operator", "nodeagent")
_EPOCH = 315_532_800
"""1980: the first year that a zip knows."""


class BadArgument(Exception):
    """An argument that cannot be used, with the reason."""


def write(folder: Path, images: Mapping[str, str], published_at: str = PUBLISHED_AT) -> list[Path]:
    """Write the release; return its files.

    Args:
        folder: The folder to write into; it is created and must be empty.
        images: References of the images `operator` and `nodeagent`.
        published_at: The URL of the folder that will serve the files, for krew.

    Raises:
        BadArgument: One of the arguments cannot be used.
    """
    version = project_version()
    if not _VERSION.fullmatch(version):  # a chart's version must have this form
        raise BadArgument(
            f"pyproject.toml: project.version: Invalid value: {version!r}: MAJOR.MINOR.PATCH"
        )
    if folder.exists() and any(folder.iterdir()):
        raise BadArgument(f"{folder} is not empty")
    files = {
        f"manifests/{name}.yaml": _with_images(text, images, version)
        for name, text in _manifests().items()
    }
    files["sbom.cdx.json"] = json.dumps(bill_of_materials(version), indent=1) + "\n"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    chart_files = {
        name: _with_images(text, images, version).encode() for name, text in chart(version).items()
    }
    _archive(folder / f"vgpu-{version}.tgz", "vgpu", chart_files)
    archives = _plugin(folder, version, _wheel(folder))
    plugin = krew.manifest(version, archives, published_at.rstrip("/"))
    (folder / "krew.yaml").write_text(plugin)
    written = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{_digest(path)}  {path.relative_to(folder)}\n" for path in written]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return [*written, folder / "SHA256SUMS"]


def _manifests() -> dict[str, str]:
    default = kustomized(())
    crds = [obj for key, obj in default.items() if key[1] == "CustomResourceDefinition"]
    found = {"crds": crds, "default": list(default.values())}
    found |= {MODES[mode]: list(kustomized((), mode).values()) for mode in ("Gate", "Claims")}
    for component in COMPONENTS:
        name = _NAMED.get(component, f"with-{component}")
        found[name] = list(kustomized((component,)).values())
    return {name: yaml.safe_dump_all(objects, sort_keys=False) for name, objects in found.items()}


def _with_images(text: str, images: Mapping[str, str], version: str) -> str:
    """Set images to the given references; our other images get the version as their tag."""
    for name in _OURS:
        place = f"{NOWHERE}/{name}"
        text = text.replace(f"{place}:dev", images.get(name, f"{place}:{version}"))
    return text


def bill_of_materials(version: str) -> dict[str, Any]:
    """Return the packages that images install, as CycloneDX 1.5 with versions and hashes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "vgpu",
                "version": version,
                "purl": f"pkg:pypi/vgpu@{version}",
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": sorted(_components(locked("run")), key=lambda each: str(each["name"])),
    }


def _components(lock: str) -> Iterator[dict[str, Any]]:
    for block in re.split(r"\n(?=[a-z0-9])", lock):
        pin = _PIN.match(block)
        if pin is None:
            continue
        name, version = re.sub(r"[-_.]+", "-", pin[1]).lower(), pin[2]
        yield {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "hashes": [{"alg": "SHA-256", "content": found} for found in _HASH.findall(block)],
        }


def pack(folder: Path, version: str, platform: Platform, files: Mapping[str, bytes]) -> Path:
    """Write the archive of the plugin for a kind of machine; return its path."""
    archive = folder / krew.archive_name(version, platform)
    _archive(archive, f"{krew.BIN}-{version}", files, programs=[krew.BIN])
    return archive


def _plugin(folder: Path, version: str, wheel: Path) -> list[tuple[Platform, Path]]:
    lock = locked("client")
    wheels = fetched(lock)
    plain = krew.plain_files(version, wheel, wheels, lock)
    return [
        (each, pack(folder, version, each, {**plain, **krew.native_files(each, wheels)}))
        for each in PLATFORMS
    ]


def _archive(
    path: Path, folder: str, files: Mapping[str, bytes], *, programs: Sequence[str] = ()
) -> None:
    """Write a gzipped tar whose bytes depend on the files alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.mode = 0o755 if name in programs else 0o644
            entry.size, entry.mtime = len(content), _EPOCH
            archive.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), compresslevel=6, mtime=0))


def _wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "-w", str(folder), str(ROOT)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH)}
    subprocess.run(command, check=True, env=environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _image(word: str) -> tuple[str, str]:
    name, separator, reference = word.partition("=")
    if not separator or name not in _OURS or not reference:
        raise BadArgument(f"IMAGES: {word!r}: operator=REFERENCE or nodeagent=REFERENCE")
    return name, reference


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m release FOLDER`."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default=project_version(), help="refuse any other version")
    parser.add_argument("--image", action="append", default=[], metavar="NAME=REFERENCE")
    parser.add_argument("--published-at", default=PUBLISHED_AT, metavar="URL")
    given = parser.parse_args(arguments)
    try:
        images = dict(map(_image, given.image))
        if given.version != project_version():
            raise BadArgument(
                f"VERSION: Invalid value: {given.version!r}: pyproject.toml has "
                f"{project_version()!r}, which the programs report"
            )
        files = write(given.folder, images, given.published_at)
    except BadArgument as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    print(f"{given.folder}: {len(files)} files; SHA256SUMS has their digests")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
