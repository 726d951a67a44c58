"""`kubectl vgpu audit`: whether the records of every node agree with each other.

Asks each agent in its own pod by `kubectl exec`, so the rights to do so are those to exec there.
Exit status: 0 when all agree, 1 when some do not, 2 when an agent could not be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import vgpu_client.kubectl
from vgpu_api.names import AGENT_NAMESPACE
from vgpu_client.kubectl import Kubectl, agents, sentence
from vgpu_nodeagent.config import STATE_DIR
from vgpu_nodeagent.kubelet.audit_socket import SOCKET, USAGE, query

_DISAGREE, _UNREACHED = 1, 2
_INTERRUPTED = 130


def of_this_node(arguments: Sequence[str]) -> int:
    """`vgpu-nodeagent audit`, inside an agent's container: print its answer as JSON."""
    parser = argparse.ArgumentParser(prog="vgpu-nodeagent audit", description=__doc__)
    parser.add_argument(
        "--state-dir", type=Path, default=STATE_DIR, help="the agent's files on the host"
    )
    path = parser.parse_args(arguments).state_dir / SOCKET
    try:
        answer = asyncio.run(query(path))
    except (OSError, ValueError) as error:
        print(f"vgpu-nodeagent audit: {path}: {error}", file=sys.stderr)
        return _UNREACHED
    print(json.dumps(answer))
    return _status([answer])


def usage_of_this_node(arguments: Sequence[str]) -> int:
    """`vgpu-nodeagent usage`, inside an agent's container: print what is in use as JSON."""
    parser = argparse.ArgumentParser(
        prog="vgpu-nodeagent usage",
        description="What containers use of this node's devices, as `kubectl vgpu top` shows it.",
    )
    parser.add_argument(
        "--state-dir", type=Path, default=STATE_DIR, help="the agent's files on the host"
    )
    path = parser.parse_args(arguments).state_dir / SOCKET
    try:
        print(json.dumps(asyncio.run(query(path, USAGE))))
    except (OSError, ValueError) as error:
        print(f"vgpu-nodeagent usage: {path}: {error}", file=sys.stderr)
        return _UNREACHED
    return 0


def main(arguments: Sequence[str] | None = None, *, kubectl: Kubectl | None = None) -> int:
    """`kubectl vgpu audit`."""
    parser = argparse.ArgumentParser(prog="kubectl vgpu audit", description=__doc__)
    parser.add_argument("--node", help="audit this node only")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="form of the result"
    )
    parser.add_argument("--context", help="of the kubeconfig")
    parser.add_argument("--kubeconfig", help="default: kubectl's own")
    given = parser.parse_args(arguments)
    run = kubectl or vgpu_client.kubectl.kubectl(given.context, given.kubeconfig)
    try:
        return _audit(run, given.node, as_json=given.output == "json")
    except KeyboardInterrupt:
        return _INTERRUPTED


def _audit(run: Kubectl, chosen: str | None, *, as_json: bool) -> int:
    """Print the answers of all agents, or of one node's; returns the exit status."""
    try:
        pods = agents(run, chosen)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        print(f"kubectl vgpu audit: {sentence(error)}", file=sys.stderr)
        return _UNREACHED
    if not pods:
        where = f" on node {chosen}" if chosen else ""
        print(f"kubectl vgpu audit: no agent runs{where}", file=sys.stderr)
        return _UNREACHED
    answers = [_answer(run, node, pod) for node, pod in sorted(pods.items())]
    if as_json:
        print(json.dumps(answers, indent=2))
    else:
        print("\n".join(line for answer in answers for line in _lines(answer)))
    return _status(answers)


def _answer(run: Kubectl, node: str, pod: str) -> dict[str, Any]:
    try:
        text = run(["exec", "-n", AGENT_NAMESPACE, pod, "--", "vgpu-nodeagent", "audit"])
        answer: dict[str, Any] = json.loads(text)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        return {"node": node, "error": sentence(error)}
    return answer


def _status(answers: Sequence[Mapping[str, Any]]) -> int:
    if any("error" in answer for answer in answers):
        return _UNREACHED
    return _DISAGREE if any(answer["findings"] for answer in answers) else 0


def _lines(answer: Mapping[str, Any]) -> list[str]:
    if "error" in answer:
        return [f"{answer['node']}: not asked: {answer['error']}"]
    found = answer["findings"]
    what = f"{answer['claims']} claims, {answer['leases']} leases"
    if not found:
        return [f"{answer['node']}: all records agree ({what})"]
    head = f"{answer['node']}: {len(found)} disagreements ({what})"
    return [head, *(f"  {f['reason']} {f['subject']}: {f['message']}" for f in found)]


if __name__ == "__main__":
    sys.exit(main())
