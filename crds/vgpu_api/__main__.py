"""Writes the CRDs and the lists of names in manifests/; `--check` fails if a file is stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vgpu_api.config import load_cluster_config
from vgpu_api.crd import crd_files
from vgpu_api.errors import BadInput
from vgpu_api.manifests import CONFIGURATION, EXPRESSIONS, SCHEDULERS, manifest_files

FOLDER = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Write or check the generated files; return 1 if a file is stale or cannot be generated."""
    parser = argparse.ArgumentParser(prog="python -m vgpu_api", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, fail when a file is stale"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the CRDs are")
    parser.add_argument(
        "--manifests",
        type=Path,
        default=FOLDER.parent / "manifests",
        help="where the manifests and the configuration are",
    )
    options = parser.parse_args(arguments)
    try:
        files = _files(options.folder, options.manifests)
    except BadInput as error:
        print(f"python -m vgpu_api: {error}", file=sys.stderr)
        return 1
    stale = {
        path: content
        for path, content in files.items()
        if not path.exists() or path.read_text() != content
    }
    if options.check and stale:
        print(f"stale: {', '.join(map(str, stale))}; run `make crds` and commit", file=sys.stderr)
        return 1
    for path, content in stale.items():
        path.write_text(content)
        print(f"wrote {path}")
    return 0


def _files(folder: Path, manifests: Path) -> dict[Path, str]:
    """Return the content of every generated file."""
    config = load_cluster_config(manifests / CONFIGURATION)
    written = {path: (manifests / path).read_text() for path in (EXPRESSIONS, *SCHEDULERS)}
    found = {folder / name: content for name, content in crd_files().items()}
    named = manifest_files(written, config)
    return found | {manifests / path: content for path, content in named.items()}


if __name__ == "__main__":
    raise SystemExit(main())
