"""`vgpu-nodeagent audit` and `vgpu-nodeagent usage`, which run in an agent's container.

`kubectl vgpu audit` and `kubectl vgpu top` run them through `kubectl exec`. Both query the agent
over its socket.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from vgpu_nodeagent.config import STATE_DIR
from vgpu_nodeagent.lifecycle.audit_socket import SOCKET, USAGE, query

_DISAGREE, _UNREACHED = 1, 2


def of_this_node(arguments: Sequence[str]) -> int:
    """Print the agent's audit as JSON; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="vgpu-nodeagent audit",
        description="Compare the records on this node with each other, for `kubectl vgpu audit`. "
        "The exit status is 1 if records disagree and 2 if the agent could not be asked.",
    )
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
    if "error" in answer:
        return _UNREACHED
    return _DISAGREE if answer["findings"] else 0


def usage_of_this_node(arguments: Sequence[str]) -> int:
    """Print the usage of containers as JSON; return the exit status."""
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
