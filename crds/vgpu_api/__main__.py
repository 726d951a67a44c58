"""`python -m vgpu_api` writes the CRDs beside the package; `--check` fails when they are stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vgpu_api.crd import crd_files

FOLDER = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Write or check the generated files; the exit code is 0 if they were fresh."""
    parser = argparse.ArgumentParser(prog="python -m vgpu_api", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, fail when a file is stale"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are")
    options = parser.parse_args(arguments)
    stale = []
    for name, content in crd_files().items():
        path = options.folder / name
        if path.exists() and path.read_text() == content:
            continue
        stale.append(name)
        if not options.check:
            path.write_text(content)
    if options.check and stale:
        print(f"stale: {', '.join(stale)}; run `make crds` and commit", file=sys.stderr)
        return 1
    for name in stale:
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
