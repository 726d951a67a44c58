"""kubectl as a process, for what people's own rights and its plumbing are needed: exec and logs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from vgpu_api.names import AGENT_NAMESPACE

AGENTS = "app.kubernetes.io/name=vgpu,app.kubernetes.io/component=nodeagent"
"""Selects the agents' pods."""
_LIMIT_S = 60.0

Kubectl: TypeAlias = Callable[[Sequence[str]], str]
"""Runs kubectl with arguments and returns what it prints; raises `subprocess.SubprocessError`."""


def kubectl(context: str | None = None, kubeconfig: str | None = None) -> Kubectl:
    """Kubectl of the PATH, against one cluster."""
    common = [f"--context={context}"] if context else []
    common += [f"--kubeconfig={kubeconfig}"] if kubeconfig else []

    def run(arguments: Sequence[str]) -> str:
        done = subprocess.run(
            ["kubectl", *common, *arguments],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.stdout.startswith("{"):  # an audit with findings ends with status 1
            return done.stdout
        done.check_returncode()
        return done.stdout

    return run


def agents(run: Kubectl, node: str | None = None) -> Mapping[str, str]:
    """The running agents' pods by node.

    Args:
        run: kubectl.
        node: This one alone.

    Raises:
        subprocess.SubprocessError: The pods cannot be listed.
        OSError: There is no kubectl.
    """
    chosen = ["--field-selector", f"spec.nodeName={node}"] if node else []
    text = run(["get", "pods", "-n", AGENT_NAMESPACE, "-l", AGENTS, *chosen, "-o", "json"])
    return {
        item["spec"]["nodeName"]: item["metadata"]["name"]
        for item in json.loads(text)["items"]
        if item["spec"].get("nodeName") and item["status"].get("phase") == "Running"
    }


def sentence(error: Exception) -> str:
    """What went wrong, in kubectl's own words where it has some."""
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        return str(error.stderr).strip()
    return str(error)
