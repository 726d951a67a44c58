"""kubectl on a cluster's kubeconfig: what a user would type, and what a user would see."""

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
    """Runs kubectl against one cluster.

    Attributes:
        kubeconfig: whose cluster, and who we are there.
        program: where kubectl is.
    """

    kubeconfig: Path
    program: str

    @classmethod
    def find(cls, kubeconfig: Path) -> Kubectl:
        """Take the kubectl on the PATH.

        Raises:
            KubectlMissing: there is none.
        """
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlMissing("kubectl is not on the PATH: install it (kubernetes-client)")
        return cls(kubeconfig, program)

    def run(
        self, *arguments: str, stdin: str | None = None, limit: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; its output is text, its exit code the caller's to judge."""
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
