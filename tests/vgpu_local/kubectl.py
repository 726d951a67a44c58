"""Runs kubectl with a cluster's kubeconfig, as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class KubectlMissing(Exception):
    """There is no kubectl on this machine."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """A kubectl for one cluster.

    Attributes:
        kubeconfig: The kubeconfig with the cluster and the user.
        program: The path of kubectl.
    """

    kubeconfig: Path
    program: str

    @classmethod
    def find(cls, kubeconfig: Path) -> Kubectl:
        """Return the kubectl that is on the PATH.

        Raises:
            KubectlMissing: There is none.
        """
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlMissing("kubectl is not on the PATH: install it (kubernetes-client)")
        return cls(kubeconfig, program)

    def run(
        self, *arguments: str, stdin: str | None = None, limit: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and return its output as text; the caller must check the exit code."""
        command: Sequence[str] = [self.program, *arguments]
        cache = self.kubeconfig.parent / "kubectl-cache"  # else it writes below the home folder
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(cache),
        }
        return subprocess.run(
            command,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
