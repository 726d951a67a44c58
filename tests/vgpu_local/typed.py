"""Runs command lines as people type them, to check the commands in our documents.

The stand-in's kubelet runs the command of a `kubectl exec`. Everything else goes to the real
kubectl, and a shell runs whatever follows a pipe.
"""

from __future__ import annotations

import shlex
import subprocess

from vgpu_local.cluster import LocalCluster
from vgpu_local.kubectl import Kubectl


class Failed(Exception):
    """The command failed; the text is its output."""


def typed(cluster: LocalCluster, line: str) -> str:
    """Run a `kubectl …` line and return its stripped output.

    Raises:
        Failed: A part of it had an exit code other than 0.
    """
    first, _, rest = line.partition(" | ")
    _, *words = shlex.split(first)
    if words[0] == "exec":
        done = cluster.exec(words[1], words[words.index("--") + 1 :])
        code, said, complaint = done.exit_code, done.stdout, done.stderr
    else:
        ran = Kubectl.find(cluster.kubeconfig).run(*words)
        code, said, complaint = ran.returncode, ran.stdout, ran.stderr
    if code == 0 and rest:
        piped = subprocess.run(
            ["sh", "-c", rest], input=said, capture_output=True, text=True, check=False
        )
        code, said, complaint = piped.returncode, piped.stdout, piped.stderr
    if code != 0:
        raise Failed(f"{line}: exit code {code}: {complaint or said}")
    return said.strip()
