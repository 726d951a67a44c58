"""The arguments of the commands that ask a cluster; what they do is loaded when they run.

Options that kubectl has are spelt as kubectl spells them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS = frozenset({"get", "explain", "top", "drain", "doctor", "audit", "support-bundle"})
_KINDS = ("slices", "devices", "nodes")
_OTHER_NAMES = {
    "slice": "slices",
    "claims": "slices",
    "claim": "slices",
    "vgpuclaims": "slices",
    "vgc": "slices",
    "device": "devices",
    "gpudevices": "devices",
    "gpudev": "devices",
    "node": "nodes",
}
FORMATS = ("wide", "json", "yaml", "name")
_JSONPATH = "jsonpath="


def add_commands(commands: Commands) -> None:
    """Add them to the parser of all commands."""
    for add in (_get, _explain, _top, _drain, _doctor, _audit, _support_bundle):
        add(commands)


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Which cluster."""
    command.add_argument("--kubeconfig", help="default: in-cluster, or the usual kubeconfig")
    command.add_argument("--context", help="of the kubeconfig")


def _get(commands: Commands) -> None:
    command = commands.add_parser(
        "get",
        help="slices (claims), devices, or nodes with devices",
        description="Print slices (claims), devices, or the nodes that have devices. Of devices "
        "and nodes: what is given away of what may be given away.",
    )
    command.add_argument(
        "kind", type=kind_named, choices=_KINDS, help="what; kubectl's names are known too"
    )
    command.add_argument("name", nargs="*", help="these alone")
    _namespace(command)
    command.add_argument("-A", "--all-namespaces", action="store_true", help="slices of all")
    command.add_argument("-l", "--selector", help="of labels, such as team=a,tier!=test")
    command.add_argument(
        "-o",
        "--output",
        type=_format,
        default=None,
        metavar="FORMAT",
        help="wide, json, yaml, name or jsonpath=TEMPLATE (printed by kubectl); default: a table",
    )
    command.add_argument("-w", "--watch", action="store_true", help="go on with what changes")
    add_cluster(command)


def _explain(commands: Commands) -> None:
    command = commands.add_parser(
        "explain",
        help="why a pod or claim waits, or why it is where it is",
        description="Why a pod or claim waits, or why it is where it is: the condition's words, "
        "what each node makes of it now, with scores, the claims that hold its devices, and "
        "those whose end would let it serve.",
    )
    command.add_argument("subject", help="a name, pod/NAME or claim/NAME")
    _namespace(command)
    command.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="form of the result"
    )
    add_cluster(command)


def _top(commands: Commands) -> None:
    command = commands.add_parser(
        "top",
        help="what slices and devices really use",
        description="What slices and devices really use of memory and compute, as their agents "
        "read it every three seconds. Each agent is asked in its pod by kubectl exec, so the "
        "rights to do so are those to exec there. In a terminal the table is refreshed until "
        "Ctrl-C.",
    )
    command.add_argument(
        "kind",
        nargs="?",
        type=kind_named,
        choices=("slices", "devices"),
        default="slices",
        help="a row for each slice, or for each device",
    )
    _namespace(command)
    command.add_argument("-A", "--all-namespaces", action="store_true", help="slices of all")
    command.add_argument("--node", help="this one alone")
    command.add_argument(
        "--sort-by", choices=("memory", "cores", "name"), default="memory", help="order of the rows"
    )
    command.add_argument("--once", action="store_true", help="print it once in a terminal, too")
    add_cluster(command)


def _drain(commands: Commands) -> None:
    command = commands.add_parser(
        "drain",
        help="let nothing new onto a device or a node's devices, and evict what is on them",
        description="Cordon a device, or all devices of a node, evict the pods that use them, and "
        "wait until they are free. A PodDisruptionBudget that refuses an eviction is asked again "
        "until the time is up. Pods without devices are left alone.",
    )
    command.add_argument("subject", help="a node, a device or its UUID; node/NAME, device/NAME")
    command.add_argument("--timeout", type=_seconds, default=300.0, help="seconds at most")
    command.add_argument("--undo", action="store_true", help="uncordon instead")
    command.add_argument("--dry-run", action="store_true", help="print the plan and end")
    command.add_argument("--yes", action="store_true", help="do not ask")
    add_cluster(command)


def _doctor(commands: Commands) -> None:
    command = commands.add_parser(
        "doctor",
        help="is all there that sharing GPUs needs, and what to do where not",
        description="Check API server, kinds, nodes, programs, leader, extender, webhooks, "
        "policies, certificates, agents, devices, claims, pods that wait unread by admission, and "
        "what else is installed beside the project. "
        "Exit status 1 when an error was found.",
    )
    command.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="form of the result"
    )
    command.add_argument("--all", action="store_true", help="what is in order, too")
    add_cluster(command)


def _audit(commands: Commands) -> None:
    command = commands.add_parser(
        "audit",
        help="Check that the records on every node agree",
        description="Ask each agent to compare its records with limit pages, CDI specs, the "
        "kubelet, claims and the driver. Agents are asked with kubectl exec in their pods, so you "
        "need the right to exec there. The exit status is 1 if records disagree and 2 if an agent "
        "could not be asked.",
    )
    command.add_argument("--node", help="Audit only this node")
    command.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="Output format"
    )
    add_cluster(command)


def _support_bundle(commands: Commands) -> None:
    command = commands.add_parser(
        "support-bundle",
        help="one archive with objects, logs and findings, and no secret",
        description="Write an archive with the project's objects, logs and doctor's findings. "
        "Secrets are not read; of pods the values of variables and the commands are left out. "
        "What could not be had is named in left-out.txt.",
    )
    command.add_argument(
        "-f", "--file", type=Path, help="NAME.tar.gz; default: vgpu-support-TIME.tar.gz"
    )
    add_cluster(command)


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"invalid value: {word!r}: seconds, 0 or more")
    return seconds


def _namespace(command: argparse.ArgumentParser) -> None:
    command.add_argument("-n", "--namespace", help="default: the context's")


def kind_named(word: str) -> str:
    """The kind that a word means; the word itself where it means none."""
    return _OTHER_NAMES.get(word.lower(), word.lower())


def _format(word: str) -> str:
    if word in FORMATS or (word.startswith(_JSONPATH) and word != _JSONPATH):
        return word
    raise argparse.ArgumentTypeError(
        f"invalid format: {word!r} (choose from {', '.join(FORMATS)}, {_JSONPATH}TEMPLATE)"
    )
