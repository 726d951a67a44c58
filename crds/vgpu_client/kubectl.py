"""Run kubectl as a process, for exec and logs with the user's own rights."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from vgpu_api.names import AGENT_LABELS, AGENT_NAMESPACE
from vgpu_client.printing import printable

AGENTS = ",".join(f"{name}={value}" for name, value in AGENT_LABELS.items())
"""Selects the agents' pods."""
_LIMIT_S = 60.0
_LOGGED = re.compile(r"[DIWEF]\d{4} \d\d:\d\d:\d\d\.")
"""The start of a line of kubectl's own log: without a server, five of them precede the error."""

Kubectl: TypeAlias = Callable[[Sequence[str]], str]
"""Runs kubectl with arguments and returns its output; raises `subprocess.SubprocessError`."""


def kubectl(flags: Sequence[str] = ()) -> Kubectl:
    """Return a runner of the kubectl on the PATH.

    Args:
        flags: The global flags that choose the cluster and the user.
    """

    def run(arguments: Sequence[str]) -> str:
        done = subprocess.run(
            ["kubectl", *flags, *arguments],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        # An audit with findings exits with status 1. So does a list that is refused, which prints
        # an empty list before its error.
        if arguments[0] == "exec" and done.stdout.startswith("{"):
            return done.stdout
        done.check_returncode()
        return done.stdout

    return run


def agents(run: Kubectl, node: str | None = None) -> Mapping[str, str]:
    """Return the running agents' pods by node.

    Args:
        run: kubectl.
        node: Return only this node's agent.

    Raises:
        subprocess.SubprocessError: The pods cannot be listed.
        OSError: kubectl is not installed.
    """
    chosen = ["--field-selector", f"spec.nodeName={node}"] if node else []
    text = run(["get", "pods", "-n", AGENT_NAMESPACE, "-l", AGENTS, *chosen, "-o", "json"])
    return {
        item["spec"]["nodeName"]: item["metadata"]["name"]
        for item in json.loads(text)["items"]
        if item["spec"].get("nodeName") and item["status"].get("phase") == "Running"
    }


def sentence(error: Exception) -> str:
    """Return the error in one line, with kubectl's own message if it printed one."""
    if isinstance(error, FileNotFoundError) and error.filename == "kubectl":
        return "kubectl is not on the PATH"
    said = str(error)
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        lines = str(error.stderr).splitlines()
        said = "\n".join(line for line in lines if not _LOGGED.match(line)) or lines[-1]
    return printable(said)
