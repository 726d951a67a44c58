"""The coverage gate: every function that NVIDIA's headers declare must have a row in the table.

The headers are not part of the tree. They are fetched from the package index, pinned, one set for
each generation of CUDA, and kept outside it. A new header that declares a function without a row
in `src/symbols.def` (and the lists it includes) fails the gate until its row states whether it
allocates, frees or reports device memory, or does none of these.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-runtime==13.5.37",
    "nvidia-nvml-dev-cu11==11.8.86",
    "nvidia-nvml-dev-cu12==12.9.79",
    "nvidia-nvml-dev==13.5.37",
)
HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h", "nvml.h")
TYPEDEFS = "Typedefs.h"  # the end of their names
PLATFORM = "manylinux2014_x86_64"
# A row of one of these classes promises that calls are interposed, so a list entry is not enough.
_MUST_HOOK = frozenset(
    {"ROUTE", "CHARGE", "RELEASE", "VIRTUALISE", "LAUNCH", "OBSERVE", "DENY"},
)
CLASSES = _MUST_HOOK | {"UNSEEN", "PASS"}

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_PROTOTYPE = re.compile(r"\b(?:CUDAAPI|DECLDIR)\s+(?:char\s*\*\s*)?((?:cu|nvml)[A-Z]\w*)\s*\(")
_RENAMED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+((?:cu|nvml)[A-Z]\w*)[ \t]+((?:cu|nvml)[A-Z]\w*)[ \t]*$",
    re.MULTILINE,
)
_TWIN = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+\w+[ \t]+__CUDA_API_PT(DS|SZ)\((\w+)\)", re.MULTILINE
)
_ROW = re.compile(r"^VGPU_(HOOK|GATE|PLAIN)\((\w+), (\w+), (\w+)(?:, (\w+), (\d+), ([01]))?", re.M)
_POINTER_TYPE = re.compile(r"\*\s*PFN_(\w+?)_v(\d+)(_ptsz|_ptds)?\)")


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one function in the table.

    Attributes:
        kind: HOOK and GATE are interposed, PLAIN is only listed.
        symbol_class: One of `CLASSES`.
        base, since, per_thread: What cuGetProcAddress is asked for; empty for PLAIN.
    """

    kind: str
    symbol_class: str
    library: str
    symbol: str
    base: str = ""
    since: int = 0
    per_thread: bool = False


def declared(header: str) -> frozenset[str]:
    """Return every exported name that a header declares, including twins and renamed ones.

    A prototype `cuX` under `#define cuX cuX_v2` declares `cuX_v2`; without the define, in the part
    for old binaries, it declares `cuX`. Programs look up both, so both count.
    """
    text = _COMMENT.sub(" ", header).replace("\\\n", " ")
    names = set(_PROTOTYPE.findall(text))
    functions = set(names)
    for old, new in _RENAMED.findall(text):
        if old in functions or old.partition("_v")[0] in functions:
            names.add(new)
    for stream, base in _TWIN.findall(text):
        names |= {base, f"{base}_pt{stream.lower()}"}
    return frozenset(names)


def table(*parts: str) -> tuple[Row, ...]:
    """Return the rows of `symbols.def` and of the lists that it includes."""
    rows = []
    for part in parts:
        for match in _ROW.finditer(_COMMENT.sub(" ", part)):
            kind, symbol_class, library, symbol, base, since, per_thread = match.groups()
            rows.append(
                Row(
                    kind,
                    symbol_class,
                    library,
                    symbol,
                    base or "",
                    int(since or 0),
                    per_thread == "1",
                )
            )
    return tuple(rows)


def versions(typedefs: Iterable[str]) -> frozenset[tuple[str, int, bool]]:
    """Return name, first version and per-thread flag of each variant that cuGetProcAddress has."""
    return frozenset(
        (name, int(since), bool(twin))
        for text in typedefs
        for name, since, twin in _POINTER_TYPE.findall(text)
    )


#: Answers of cuGetProcAddress without a pointer type: (name, version, twin?, symbol).
UNTYPED = (
    ("cuGetProcAddress", 11030, True, "cuGetProcAddress_ptsz"),
    ("cuGetProcAddress", 12000, True, "cuGetProcAddress_v2_ptsz"),
    ("cuGraphInstantiate", 12000, False, "cuGraphInstantiateWithFlags"),
)
_ENTRY_POINTS = """\
/* What cuGetProcAddress of the simulated driver can find: FAKE(base name, first CUDA version,
 * exported symbol), FAKE_PT(...) the variant for per-thread default streams. The highest version
 * not above the requested one wins.
 *
 * All that the headers name, from CUDA 11.8 on. Written by tools/coverage.py --entry-points. */
"""


def entry_points(names: frozenset[str], known_versions: frozenset[tuple[str, int, bool]]) -> str:
    """Return the table of the simulated cuGetProcAddress.

    The n-th version of a name is the n-th of the exported symbols `name`, `name_v2`, …, counted
    from the newest; the same for `_ptsz` and `_ptds`.

    Raises:
        ValueError: A name has more versions than symbols.
    """
    rows = set(UNTYPED)
    families: dict[tuple[str, bool], list[int]] = {}
    for name, since, twin in known_versions:
        families.setdefault((name, twin), []).append(since)
    for (name, twin), since in families.items():
        numbered = [name, *(f"{name}_v{n}" for n in range(2, 6))]
        endings = ("_ptsz", "_ptds") if twin else ("",)
        exported = [word + end for word in numbered for end in endings if word + end in names]
        if len(exported) < len(since):
            raise ValueError(f"{name} has versions {sorted(since)} and only {exported}")
        newest = exported[-len(since) :]
        rows |= {(name, v, twin, s) for v, s in zip(sorted(since), newest, strict=True)}
    lines = [
        f"FAKE{'_PT' if twin else ''}({name}, {since}, {symbol})\n"
        for name, since, twin, symbol in sorted(rows)
    ]
    return _ENTRY_POINTS + "".join(lines)


def complaints(
    rows: Iterable[Row],
    names: Mapping[str, frozenset[str]],
    known_versions: frozenset[tuple[str, int, bool]],
) -> list[str]:
    """Return the faults of the table, one sentence each.

    Args:
        rows: The table.
        names: Declared names, by the header they come from.
        known_versions: As `versions` gives them; empty checks none.
    """
    rows = tuple(rows)
    found = []
    counted = Counter(row.symbol for row in rows)
    found += [f"{symbol} has {count} rows" for symbol, count in counted.items() if count > 1]
    for row in rows:
        if row.symbol_class not in CLASSES:
            found.append(f"{row.symbol} has the unknown class {row.symbol_class}")
        if row.kind == "PLAIN" and row.symbol_class in _MUST_HOOK:
            found.append(f"{row.symbol} is {row.symbol_class} and has no hook")
    for header, wanted in names.items():
        found += [f"{symbol} of {header} has no row" for symbol in sorted(wanted - counted.keys())]
    bases = {name for name, _, _ in known_versions}
    for row in rows:
        # The look-up function itself has no pointer type for its per-thread variants.
        if row.library != "cuda" or row.base not in bases or row.base == "cuGetProcAddress":
            continue
        if (row.base, row.since, row.per_thread) not in known_versions:
            found.append(f"{row.symbol}: {row.base} has no variant of version {row.since}")
    return found


def fetch(cache: Path) -> None:
    """Download the pinned packages that are missing into `cache`.

    Raises:
        subprocess.CalledProcessError: The package index does not give one of them.
    """
    cache.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not wheels(cache, package):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--disable-pip-version-check", "--only-binary", ":all:"]
            command += ["--platform", PLATFORM, "--dest", str(cache), package]
            subprocess.run(command, check=True)


def headers(cache: Path) -> dict[str, str]:
    """Return the text of each header in the downloaded packages, by package and file name."""
    texts = {}
    for package in PACKAGES:
        for wheel in wheels(cache, package):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    name = Path(member).name
                    if name in HEADERS or name.endswith(TYPEDEFS):
                        key = f"{package.replace('==', ' ')} {name}"
                        texts[key] = archive.read(member).decode(errors="replace")
    return texts


def wheels(cache: Path, package: str) -> list[Path]:
    """Return the downloaded files of a pinned package."""
    name, _, version = package.partition("==")
    return sorted(cache.glob(f"{name.replace('-', '_')}-{version}-*.whl"))


def default_cache() -> Path:
    """Return the folder that keeps the packages between runs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vgpu"
    return Path(os.environ.get("VGPU_CACHE") or home) / "headers"


def rows() -> tuple[Row, ...]:
    """Return the table of the library."""
    root = Path(__file__).resolve().parents[1]
    return table(*(path.read_text() for path in sorted((root / "src").glob("symbols*.def"))))


def main() -> int:
    """Run the gate; return 0 if every declared function has its row."""
    root = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--entry-points", action="store_true", help="write the simulated table")
    options = parser.parse_args()
    cache = options.cache
    try:
        fetch(cache)
    except subprocess.CalledProcessError as error:
        print(f"coverage: cannot fetch NVIDIA's headers: {error}", file=sys.stderr)
        return 2
    texts = headers(cache)
    names = {key: declared(text) for key, text in texts.items() if not key.endswith(TYPEDEFS)}
    listed = rows()
    known = versions(text for key, text in texts.items() if key.endswith(TYPEDEFS))
    wrong = complaints(listed, names, known)
    exported = frozenset(row.symbol for row in listed if row.library == "cuda")
    simulated = root / "fake" / "cuda_symbols.def"
    points = entry_points(exported, known)
    if options.entry_points:
        simulated.write_text(points)
    elif simulated.read_text() != points:
        wrong.append(f"{simulated.name} is not what --entry-points writes")
    for key, wanted in names.items():
        print(f"{key:45} {len(wanted):4} functions")
    for library in ("cuda", "nvml"):
        mine = [row for row in listed if row.library == library]
        counts = Counter(row.symbol_class for row in mine)
        interposed = sum(row.kind != "PLAIN" for row in mine)
        print(f"{library}: {len(mine)} rows, {interposed} interposed:", end="")
        print("".join(f" {name} {counts[name]}" for name in sorted(counts)))
    for sentence in wrong:
        print(f"coverage: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
