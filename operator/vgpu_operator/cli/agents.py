"""Queries the node agents through `kubectl exec` into their pods.

The agents open no port for this, so RBAC on `pods/exec` decides who may query them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from vgpu_api.names import AGENT_NAMESPACE
from vgpu_client.kubectl import Kubectl, agents, sentence
from vgpu_operator.cli.listing import CannotAnswer

_AT_ONCE = 16


@dataclass(slots=True)
class AgentAnswers:
    """The responses of the agents, by node.

    Attributes:
        nodes: The document that each agent printed.
        errors: The error, for each node that gave no response.
    """

    nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def ask(
    run: Kubectl, question: Literal["audit", "usage"], *, node: str | None = None
) -> AgentAnswers:
    """Query the agents, several at a time.

    Args:
        run: Runs kubectl.
        question: The command of `vgpu-nodeagent` to run.
        node: Query only the agent of this node; None: all agents.

    Raises:
        CannotAnswer: The agents' pods cannot be listed, or none is running.
    """
    try:
        pods = agents(run, node)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        raise CannotAnswer(f"the agents' pods cannot be listed: {sentence(error)}") from error
    if not pods:
        raise CannotAnswer("no agent runs" + (f" on node {node}" if node else ""))
    answers = AgentAnswers()
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        given = pool.map(lambda pod: _ask_one(run, question, pod), pods.values())
        for name, answer in zip(pods, given, strict=True):
            if isinstance(answer, str):
                answers.errors[name] = answer
            else:
                answers.nodes[name] = answer
    return answers


def _ask_one(run: Kubectl, question: str, pod: str) -> Mapping[str, Any] | str:
    """Return the document that an agent printed, or an error message."""
    try:
        text = run(["exec", "-n", AGENT_NAMESPACE, pod, "--", "vgpu-nodeagent", question])
        answer: Mapping[str, Any] = json.loads(text)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return sentence(error)
    return answer
