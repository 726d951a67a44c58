"""Mutation testing: change the code of a room one small step at a time; a test should notice.

mutmut names a mutant after its file's path and needs the import name to be the same, so it works
on a flat copy of the packages under build/mutate; the checkout itself is never changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutate"
PACKAGES = (
    "crds/vgpu_api",
    "crds/vgpu_client",
    "operator/vgpu_operator",
    "nodeagent/vgpu_nodeagent",
)
"""Modules that the tests of all rooms import."""
BESIDE = ("tests", "examples")
"""Other folders that the tests read."""
PLUGINS = (
    "mutation.small_examples",
    "no:cacheprovider",
    "no:unraisableexception",  # the garbage collections would be more than half of a mutant's cost
    "no:threadexception",
)
BAR = 85.0
"""Percent to be killed."""

KILLED = frozenset({1, 3})
TIMED_OUT = frozenset({-24, 24, 36, 152})
UNTESTED = frozenset({5, 33})
NOT_A_VERDICT = frozenset({2, 255})
"""Interrupted; or pytest did not get to run."""
UNNOTICED = UNTESTED | NOT_A_VERDICT | {0}


@dataclass(slots=True)
class Outcome:
    """The fates of a room's mutants, by mutmut's names."""

    room: str
    seconds: float = 0.0
    killed: list[str] = field(default_factory=list)
    timed_out: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    diffs: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Return all mutants."""
        return self.noticed + len(self.survived) + len(self.untested) + len(self.unknown)

    @property
    def noticed(self) -> int:
        """Return the mutants that a test noticed, including endless ones and crashes of Python."""
        return len(self.killed) + len(self.timed_out) + len(self.crashed)

    @property
    def percent(self) -> float:
        """Return the percentage of mutants that were noticed."""
        return 100 * self.noticed / self.total if self.total else 0.0


def copy_tree(into: Path) -> None:
    """Copy the packages side by side, and the tests. Keep the times, which mutmut compares."""
    skipped = shutil.ignore_patterns("__pycache__", "cluster", "perf")
    for source in (*PACKAGES, *BESIDE):
        target = into / Path(source).name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(ROOT / source, target, ignore=skipped)


def configuration(mutate: Sequence[str], tests: Sequence[str]) -> str:
    """Return the copy's pyproject.toml: mutmut's settings, and pytest's as the project has them."""
    pytest = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    # A test is not at fault if mutmut has imported modules before pytest starts.
    ignored = "ignore::pytest.PytestAssertRewriteWarning"
    ini = {**pytest, "filterwarnings": [*pytest["filterwarnings"], ignored]}
    mutmut = {
        "source_paths": sorted({pattern.partition("/")[0] for pattern in mutate}),
        "only_mutate": mutate,
        "also_copy": [*(Path(package).name for package in PACKAGES), *BESIDE],
        "do_not_mutate_patterns": [r"\blogger\."],  # no test depends on the texts of logs
        "pytest_add_cli_args": [part for plugin in PLUGINS for part in ("-p", plugin)],
        "pytest_add_cli_args_test_selection": tests,
        # Seconds, times 15: on a busy machine nothing that is merely slow may count as killed.
        "timeout_constant": 4.0,
        # The tests are imported once, and a child is forked for every mutant.
        "process_isolation": "forkserver",
        "forkserver_warmup": "collect",
    }
    sections = {"tool.pytest.ini_options": ini, "tool.mutmut": mutmut}
    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in section.items())
        for name, section in sections.items()
    )


def run_room(room: str, *, mutate: Sequence[str], tests: Sequence[str], again: bool) -> Outcome:
    """Mutate one package.

    Args:
        room: The package's name.
        mutate: Patterns of the files to mutate, in the flat copy.
        tests: Paths of the tests to run.
        again: Try only the mutants that survived the last time, after tests have changed.
    """
    tree = BUILD / room
    report = BUILD / f"{room}.json"
    if again:
        forget_survivors(tree)
    else:
        shutil.rmtree(tree / "mutants", ignore_errors=True)
    tree.mkdir(parents=True, exist_ok=True)
    copy_tree(tree)
    (tree / "pyproject.toml").write_text(configuration(mutate, tests))
    (tree / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)  # records which test runs what
    begun = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(tree / "tests"), "PYTHONHASHSEED": "0"}
    # One child: the machine has other work.
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", "1"]
    with (tree / "log").open("w") as log:
        output = None if sys.stdout.isatty() else log
        code = subprocess.run(
            command, cwd=tree, env=environment, stdout=output, stderr=log
        ).returncode
    if code:
        raise SystemExit(f"mutate: {room}: mutmut ended with {code}; see {tree / 'log'}")
    outcome = read_outcome(room, tree)
    outcome.seconds = round(time.monotonic() - begun, 1)
    outcome.diffs = diffs(tree, [*outcome.survived, *outcome.untested, *outcome.timed_out])
    report.write_text(json.dumps(asdict(outcome), indent=1) + "\n")
    return outcome


def forget_survivors(tree: Path) -> None:
    """Make mutmut retry the mutants that no test noticed; the others keep their outcome."""
    for path in (tree / "mutants").rglob("*.py.meta"):
        document = json.loads(path.read_text())
        codes = document["exit_code_by_key"]
        noticed = {name: code for name, code in codes.items() if code not in UNNOTICED}
        document["exit_code_by_key"] = dict.fromkeys(codes) | noticed
        path.write_text(json.dumps(document, indent=4))


def read_outcome(room: str, tree: Path) -> Outcome:
    """Classify a package's mutants by what mutmut recorded about them."""
    outcome = Outcome(room)
    for path in sorted((tree / "mutants").rglob("*.py.meta")):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            if code == 0:
                outcome.survived.append(name)
            elif code in KILLED:
                outcome.killed.append(name)
            elif code in TIMED_OUT:
                outcome.timed_out.append(name)
            elif code in UNTESTED:
                outcome.untested.append(name)
            elif code is None or code in NOT_A_VERDICT:
                outcome.unknown.append(name)
            else:
                outcome.crashed.append(name)
    return outcome


def diffs(tree: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the diffs of these mutants."""
    os.chdir(tree)  # mutmut looks for its copy here
    found = {}
    for name in names:
        path = Path(*name.split(".")[:-1]).with_suffix(".py")
        lines = get_diff_for_mutant(name, path=path).splitlines()
        found[name] = "\n".join(
            line for line in lines if line[:1] in "+-" and line[:3] not in ("---", "+++")
        )
    return found


def main() -> int:
    """Mutate the requested packages; return 1 if one of them is below the bar."""
    rooms = tomllib.loads(Path(__file__).with_name("rooms.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(rooms)}; default all"
    )
    parser.add_argument("--again", action="store_true", help="only what survived the last time")
    arguments = parser.parse_args()
    for room in arguments.rooms:
        if room not in rooms:
            parser.error(f"no room {room!r}: there are {', '.join(rooms)}")
    os.nice(19)
    failed = False
    for room in arguments.rooms or rooms:
        outcome = run_room(room, **rooms[room], again=arguments.again)
        for name, diff in outcome.diffs.items():
            how = "timed out" if name in outcome.timed_out else "survived"
            print(f"{how}: {name}\n{diff}\n")
        print(
            f"{room}: {outcome.noticed}/{outcome.total} killed, {outcome.percent:.1f} % "
            f"({len(outcome.timed_out)} by time, {len(outcome.untested)} run by no test, "
            f"{len(outcome.unknown)} not judged; {outcome.seconds:.0f} s)",
            flush=True,
        )
        failed |= outcome.percent < BAR or bool(outcome.unknown)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
