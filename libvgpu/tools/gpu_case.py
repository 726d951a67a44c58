"""Runs one case of the check on a GPU: programs with a time limit, and an outcome.

Every case has an outcome and, unless it passed, a reason: a check that ends early, hangs or lacks
something must never look like one that passed. It needs only Python (3.8 or newer).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
# Passed without a real device: this proves the check itself, and no limit.
SIMULATED = "simulated"


# Faults of the check itself or of a program that answered it: they cost one case, not those after
# it.
UNEXPECTED = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    TypeError,
    ValueError,
    subprocess.SubprocessError,
)


class CaseError(Exception):
    """A program of the case failed to do its job."""


class NotRun(Exception):
    """The machine has nothing for this case; the message says what is missing."""


class Deadline:
    """The seconds that the whole check may still take."""

    def __init__(self, seconds: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end = now() + seconds

    def left(self) -> float:
        """Return the remaining seconds, at least 0."""
        return max(0.0, self._end - self._now())


def case(
    name: str, body: Callable[[Deadline], dict[str, Any]], *, limit_s: float, deadline: Deadline
) -> dict[str, Any]:
    """Run one case and return its row.

    Args:
        name: The name in the findings.
        body: Is given the time it has; returns figures, with sentences on broken promises under
            `wrong`, and the rows of docs/limits.md that they break under `limits`. May raise
            CaseError.
        limit_s: The seconds that it may take.
        deadline: The deadline of the whole check: a case that no longer fits has failed.
    """
    row: dict[str, Any] = {"case": name, "outcome": FAILED, "why": ""}
    seconds = min(limit_s, deadline.left())
    if seconds < limit_s / 2:
        return {**row, "why": f"no time left for it: {seconds:.0f} of {limit_s:.0f} s"}
    started = time.monotonic()
    try:
        figures = body(Deadline(seconds))
    except NotRun as error:
        return {**row, "outcome": NOT_RUN, "why": str(error)}
    except CaseError as error:
        return {**row, "why": str(error), "took_s": round(time.monotonic() - started, 1)}
    except UNEXPECTED as error:
        why = f"cannot be explained: {type(error).__name__}: {error}"
        return {**row, "why": why, "took_s": round(time.monotonic() - started, 1)}
    wrong = figures.pop("wrong", [])
    limits = figures.pop("limits", [])
    outcome = FAILED if wrong else PASSED
    took = round(time.monotonic() - started, 1)
    found = {"outcome": outcome, "why": "; ".join(wrong), "limits": limits if wrong else []}
    return {**row, **found, **figures, "took_s": took}


def answers(
    command: Sequence[object], *, env: dict[str, str], limit_s: float
) -> list[dict[str, Any]]:
    """Run a program to its end; return the JSON objects that it printed, one per line.

    Raises:
        CaseError: It failed, took too long, or printed something else.
    """
    return Started(command, env=env).finish(limit_s)


class Started:
    """A running program, in a process group of its own."""

    def __init__(self, command: Sequence[object], *, env: dict[str, str]) -> None:
        self._name = Path(str(command[0])).name
        try:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise CaseError(f"{self._name}: {error}") from error

    @property
    def pid(self) -> int:
        """Return the PID of the program, or of its starter in a namespace of its own."""
        return self._process.pid

    def first_answer(self, limit_s: float) -> dict[str, Any]:
        """Return the JSON object that it prints before it waits for its standard input to end.

        Raises:
            CaseError: It said nothing in time, ended, or printed something else.
        """
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], limit_s)
        line = out.readline() if ready else ""
        if line:
            try:
                answer: dict[str, Any] = json.loads(line)
            except ValueError as error:
                raise CaseError(f"{self._name}: not JSON: {line[:200]!r}") from error
            return answer
        if not ready:
            self.kill()
            raise CaseError(f"{self._name}: no answer after {limit_s:.0f} s")
        self.finish(limit_s)
        raise CaseError(f"{self._name}: ended without an answer")

    def go(self) -> None:
        """Close its standard input."""
        if self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None

    def finish(self, limit_s: float) -> list[dict[str, Any]]:
        """Wait for its end; see `answers`."""
        try:
            out, errors = self._process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise CaseError(f"{self._name}: not done after {limit_s:.0f} s") from error
        if self._process.returncode:
            said = _last_line(out) + " " + _last_line(errors)
            raise CaseError(f"{self._name}: status {self._process.returncode}: {said.strip()}")
        try:
            return [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        except ValueError as error:
            raise CaseError(f"{self._name}: not JSON: {out[:200]!r}") from error

    def kill(self) -> None:
        """Kill it and everything it started, if it has not ended yet."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()  # also of one that ended by itself without a request


def environment(library: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a program on its own, or under the library with these limits."""
    ours = ("LD_PRELOAD", "VGPU_LIMIT_PAGE", "VGPU_USAGE_REGION", "GPU_CORE_UTILIZATION_POLICY")
    limits = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT", "CUDA_HOST_MEMORY_LIMIT")
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(limits)
    }
    return {**env, "LD_PRELOAD": str(library), **settings} if settings else env


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
