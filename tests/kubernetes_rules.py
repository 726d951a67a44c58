"""Kubernetes' own answers: which nodes pass kube-scheduler's filters, which quotas count a pod.

The program is built from the Go modules that the control plane is built from
(`tests/cluster/kube/rules`) and kept beside it, outside the tree.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

KUBE = Path(__file__).parent / "cluster" / "kube"
SOURCES = (KUBE / "go.mod", KUBE / "go.sum", KUBE / "rules" / "main.go")
BUILD = (
    *("go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false"),
    *("-tags", "grpcnotrace", "-ldflags", "-s -w"),
)

Raw = Mapping[str, Any]


def is_buildable() -> bool:
    """True if there is a Go compiler to build the program with."""
    return shutil.which("go") is not None


def program() -> Path:
    """Return the program, and build it first if it is missing."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("VGPU_CACHE") or home / "vgpu")
    folder = cache / f"rules-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / "rules"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            unfinished = folder / "unfinished"
            environment = {**os.environ, "CGO_ENABLED": "0"}
            subprocess.run(
                (*BUILD, "-o", str(unfinished), "./rules"), cwd=KUBE, env=environment, check=True
            )
            unfinished.rename(built)
    return built


class KubernetesRules:
    """The running program, which answers one request after the other."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            (str(program()),), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self,
        of: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def refused(self, pod: Raw, nodes: Sequence[Raw], pods: Sequence[Raw]) -> dict[str, str]:
        """Return the reasons for which kube-scheduler refuses nodes for a pod, by node.

        Args:
            pod: The pod to be scheduled.
            nodes: All nodes.
            pods: All pods that have a node.
        """
        answer = self._ask({"pod": pod, "nodes": nodes, "pods": pods})
        refused: dict[str, str] = answer.get("refused", {})
        return refused

    def counted(self, pod: Raw, quotas: Sequence[Raw]) -> set[str]:
        """Return the names of the quotas that count a pod."""
        return set(self._ask({"pod": pod, "quotas": quotas}).get("counted", ()))

    def _ask(self, question: Raw) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
