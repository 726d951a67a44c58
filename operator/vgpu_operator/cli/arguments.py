"""The arguments of the commands that read a cluster. The commands are imported when they run.

Options that kubectl also has are spelled the same way.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vgpu_api.errors import VgpuError
from vgpu_api.quantity import mib

if TYPE_CHECKING:
    from vgpu_operator.cli.parsing import Parser

    Commands = argparse._SubParsersAction[Parser]

COMMANDS = frozenset(
    {
        "get",
        "explain",
        "top",
        "resize",
        "cordon",
        "uncordon",
        "drain",
        "doctor",
        "audit",
        "support-bundle",
        "version",
        "web",
    }
)
_KINDS = ("slices", "devices", "nodes", "pods")
_OTHER_NAMES = {
    "slice": "slices",
    "claims": "slices",
    "claim": "slices",
    "vgpuclaims": "slices",
    "vgpuclaim": "slices",
    "vgc": "slices",
    "pod": "pods",
    "po": "pods",
    "gpu": "devices",
    "gpus": "devices",
    "device": "devices",
    "gpudevices": "devices",
    "gpudevice": "devices",
    "gpudev": "devices",
    "node": "nodes",
    "no": "nodes",
}
GLOBAL_FLAGS = "global flags"
"""The title of the flags that all commands have that ask a cluster."""
FORMATS = ("wide", "json", "yaml", "name")
_JSONPATH = "jsonpath="


def add_commands(commands: Commands) -> None:
    """Add the commands that read a cluster."""
    for add in (
        _get,
        _explain,
        _top,
        _resize,
        _cordon,
        _drain,
        _doctor,
        _audit,
        _support_bundle,
        _version,
        _web,
    ):
        add(commands)


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Add the options that select a cluster."""
    flags = command.add_argument_group(
        GLOBAL_FLAGS, "These flags may also come before the command."
    )
    flags.add_argument(
        "--kubeconfig",
        help="Path to the kubeconfig file (default: $KUBECONFIG, the service account of the pod, "
        "or ~/.kube/config)",
    )
    flags.add_argument("--context", help="Kubeconfig context to use (default: the current one)")
    flags.add_argument(
        "--as", dest="user", metavar="USER", help="User to impersonate for the operation"
    )
    flags.add_argument(
        "--as-group",
        dest="groups",
        metavar="GROUP",
        action="append",
        default=[],
        help="Group to impersonate for the operation; may be repeated",
    )
    flags.add_argument(
        "--as-uid", dest="uid", metavar="UID", help="UID to impersonate for the operation"
    )
    flags.add_argument(
        "--request-timeout",
        type=_duration,
        default="0",
        metavar="DURATION",
        help="Time to wait for a single server request, such as 5s or 1m30s; 0 keeps the "
        "built-in timeouts (default: 0)",
    )
    flags.add_argument(
        "-v",
        "--v",
        dest="verbosity",
        type=int,
        default=0,
        metavar="LEVEL",
        help="Log level; 6 and higher show the requests (default: 0)",
    )


def add_output(command: argparse.ArgumentParser, formats: Sequence[str] = ("text", "json")) -> None:
    """Add the option for the output format."""
    command.add_argument(
        "-o",
        "--output",
        choices=formats,
        default=formats[0],
        help=f"Output format (default: {formats[0]})",
    )


def _get(commands: Commands) -> None:
    command = commands.add_parser(
        "get",
        help="Show slices, pods, devices or nodes",
        description="Show slices (claims), pods that use GPUs, devices, or nodes that have "
        "devices. For devices and nodes, also show allocated and allocatable resources. For pods, "
        "JSON and YAML output shows their claims.",
    )
    command.add_argument(
        "kind",
        type=kind_named,
        choices=_KINDS,
        help="Kind to show; kubectl resource names are also accepted",
    )
    command.spellings = tuple(_OTHER_NAMES)
    # Without a default argparse would call the names required where the kind is missing.
    command.add_argument(
        "name", nargs="*", default=[], help="Names of the objects to show (default: all)"
    )
    _add_namespaces(command)
    command.add_argument("-l", "--selector", help="Label selector, such as team=a,tier!=test")
    command.add_argument(
        "-o",
        "--output",
        type=_format,
        default=None,
        metavar="FORMAT",
        help="Output format: wide, json, yaml, name or jsonpath=TEMPLATE, which requires kubectl "
        "(default: a table)",
    )
    command.add_argument("-w", "--watch", action="store_true", help="Watch for changes")
    add_cluster(command)


def _explain(commands: Commands) -> None:
    command = commands.add_parser(
        "explain",
        help="Explain why a pod or claim is pending, or why it was placed where it is",
        description="Explain why a pod or claim is pending, or why it was placed where it is. "
        "Shows its condition and, for each node, whether it could serve the request now, its "
        "score, the claims using its devices, and the claims that would have to end to make room.",
    )
    command.add_argument("subject", help="NAME, pod/NAME or claim/NAME")
    _add_namespace(command)
    add_output(command, ("text", "wide", "json"))
    add_cluster(command)


def _top(commands: Commands) -> None:
    command = commands.add_parser(
        "top",
        help="Show memory and compute usage of slices and devices",
        description="Show memory and compute usage of slices and devices, sampled by the agents "
        "every three seconds. Queries the agents through kubectl exec, so you need permission to "
        "exec into their pods. In a terminal, the table refreshes until you press Ctrl-C.",
    )
    command.add_argument(
        "kind",
        nargs="?",
        type=kind_named,
        choices=("slices", "pods", "devices"),
        default="slices",
        help="What to show: one row per slice (slices and pods are equivalent) or one row per "
        "device (default: slices)",
    )
    _add_namespaces(command)
    command.add_argument("--node", help="Show only this node")
    command.add_argument(
        "--sort-by",
        choices=("memory", "cores", "name"),
        default="memory",
        help="Sort order: the largest usage first, or by name (default: memory)",
    )
    command.add_argument("--once", action="store_true", help="Print once and exit")
    add_output(command, ("text", "wide"))
    add_cluster(command)


def _resize(commands: Commands) -> None:
    command = commands.add_parser(
        "resize",
        help="Change the memory or compute of a slice while its pod runs",
        description="Change the memory or compute that a slice asks for, without restarting its "
        "pod, and show the result. A smaller memory limit takes effect once usage has dropped "
        "to it. Exits with status 1 if the new size has not taken effect yet.",
    )
    command.add_argument("subject", help="NAME, pod/NAME or claim/NAME")
    command.add_argument(
        "-c",
        "--container",
        help="Container to resize (default: the only one that has a GPU)",
    )
    command.add_argument("--memory", type=_size, help="Memory to request on each GPU, such as 16Gi")
    command.add_argument(
        "--memory-percent",
        type=_percent,
        metavar="PERCENT",
        help="Percentage of each GPU's memory, from 1 to 100",
    )
    command.add_argument(
        "--cores",
        type=_percent,
        metavar="PERCENT",
        help="Share of each GPU's compute, from 0 (no limit) to 100",
    )
    command.add_argument(
        "--timeout",
        type=_seconds,
        default=30,
        help="Seconds to wait for the result (default: 30)",
    )
    _add_namespace(command)
    add_cluster(command)


def _cordon(commands: Commands) -> None:
    subject = (
        "Node name, device name or device UUID; use node/NAME or device/NAME if a name is ambiguous"
    )
    cordon = commands.add_parser(
        "cordon",
        help="Mark a device or a node's devices as unschedulable",
        description="Mark a device, or all devices of a node, as unschedulable. Pods that use them "
        "keep running; use drain to evict them.",
    )
    uncordon = commands.add_parser(
        "uncordon",
        help="Mark a device or a node's devices as schedulable",
        description="Mark a device, or all devices of a node, as schedulable.",
    )
    for command in (cordon, uncordon):
        command.add_argument("subject", help=subject)
        add_cluster(command)


def _drain(commands: Commands) -> None:
    command = commands.add_parser(
        "drain",
        help="Cordon a device or a node's devices and evict their pods",
        description="Cordon a device, or all devices of a node, evict the pods that use them, and "
        "wait until the devices are free. Evictions that a PodDisruptionBudget refuses are "
        "retried until the timeout. Pods without devices are not evicted.",
    )
    command.add_argument(
        "subject",
        help="Node name, device name or device UUID; use node/NAME or device/NAME if a name is "
        "ambiguous",
    )
    command.add_argument(
        "--timeout",
        type=_seconds,
        default=300,
        help="Seconds to wait before giving up (default: 300)",
    )
    command.add_argument("--undo", action="store_true", help="Uncordon instead")
    add_plan(command)
    add_cluster(command)


def add_plan(command: argparse.ArgumentParser) -> None:
    """Add the options of a command that prints a plan and asks for confirmation."""
    command.add_argument(
        "--dry-run", action="store_true", help="Print the plan without carrying it out"
    )
    command.add_argument("--yes", action="store_true", help="Do not ask for confirmation")


def _doctor(commands: Commands) -> None:
    command = commands.add_parser(
        "doctor",
        help="Check the installation and suggest fixes",
        description="Check the API server, CRDs, nodes, vgpu's Deployments and DaemonSets "
        "(operator, webhook, scheduler and agents), the leader, extender, preemption, webhooks, "
        "admission policies, certificates, agents, devices and claims; find pending pods that "
        "bypassed admission; and list other GPU software in the cluster. Exits with status 1 if "
        "any errors are found.",
    )
    add_output(command)
    command.add_argument("--all", action="store_true", help="Also list checks that passed")
    add_cluster(command)


def _audit(commands: Commands) -> None:
    command = commands.add_parser(
        "audit",
        help="Check that the records on every node agree",
        description="Have each agent check its records against limit pages, CDI specs, the "
        "kubelet, claims and the driver. Also check ResourceClaims against VGPUClaims. Uses "
        "kubectl exec, so you need permission to exec into the agents' pods, and to list "
        "ResourceClaims, VGPUClaims and pods. Exits with status 1 if any records disagree, or 2 if "
        "an agent could not be reached or records could not be compared.",
    )
    command.add_argument("--node", help="Audit only this node")
    add_output(command)
    add_cluster(command)


def _support_bundle(commands: Commands) -> None:
    command = commands.add_parser(
        "support-bundle",
        help="Collect objects, logs and doctor findings into an archive (no Secrets)",
        description="Write an archive of vgpu objects, logs and doctor findings. It contains no "
        "Secrets, and container commands and environment variable values are stripped from pods. "
        "left-out.txt in the archive lists anything that could not be collected.",
    )
    command.add_argument(
        "-f",
        "--file",
        type=Path,
        help="Archive to write (default: vgpu-support-TIME.tar.gz)",
    )
    add_cluster(command)


def _version(commands: Commands) -> None:
    command = commands.add_parser(
        "version",
        help="Show the versions of this program and of the operator",
        description="Show the versions of this program and of the operator in the cluster. The "
        "operator's version is read from a label on its Deployment.",
    )
    command.add_argument(
        "--client",
        action="store_true",
        help="Show only the version of this program; do not contact the cluster",
    )
    add_output(command)
    add_cluster(command)


def _web(commands: Commands) -> None:
    command = commands.add_parser(
        "web",
        help="Open the web page in a browser, logged in as you",
        description="Forward a local port to vgpu's web page (the web component) and open it in a "
        "browser, logged in with the token from your kubeconfig. The login address works only "
        "once. Requires kubectl, and permission to forward ports in vgpu-system.",
    )
    command.add_argument(
        "--service-account",
        metavar="NAME",
        help="Log in as this service account instead, with a token from kubectl create token; use "
        "-n to choose its namespace",
    )
    command.add_argument(
        "--port", type=_port, default=0, help="Local port, 0 for any free one (default: 0)"
    )
    command.add_argument(
        "--no-browser", action="store_true", help="Print the address without opening it"
    )
    _add_namespace(command)
    add_cluster(command)


def _port(word: str) -> int:
    if word.isascii() and word.isdigit() and len(word) < 6 and int(word) < 65_536:
        return int(word)
    raise argparse.ArgumentTypeError(f"Invalid value: {word!r}: must be a port from 0 to 65535")


def _duration(word: str) -> float:
    """Return the seconds of a duration in Go's notation, or of a plain number; 0 means no limit."""
    seconds_alone = word.isascii() and word.isdigit()
    text = f"{word}s" if seconds_alone else word
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", text)
    if not text or found is None:
        raise argparse.ArgumentTypeError(
            f"Invalid value: {word!r}: must be a duration, such as 5s, 2m or 0"
        )
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds + milliseconds / 1000 or float("inf")


def _size(word: str) -> str:
    """Return a quantity of memory that is a whole number of MiB."""
    try:
        mib(word)
    except VgpuError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return word


def _percent(word: str) -> int:
    if word.isascii() and word.isdigit() and len(word) < 4 and int(word) <= 100:
        return int(word)
    raise argparse.ArgumentTypeError(f"Invalid value: {word!r}: must be a number from 0 to 100")


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"Invalid value: {word!r}: must be 0 seconds or more")
    return seconds


def _add_namespace(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-n", "--namespace", help="Namespace (default: the current context's namespace)"
    )


def _add_namespaces(command: argparse.ArgumentParser) -> None:
    _add_namespace(command)
    command.add_argument(
        "-A", "--all-namespaces", action="store_true", help="List across all namespaces"
    )


def kind_named(word: str) -> str:
    """Return the kind for a kubectl resource name; other words are returned unchanged."""
    return _OTHER_NAMES.get(word.lower(), word.lower())


def _format(word: str) -> str:
    if word in FORMATS or (word.startswith(_JSONPATH) and word != _JSONPATH):
        return word
    raise argparse.ArgumentTypeError(
        f"Invalid value: {word!r}: must be one of {', '.join(FORMATS)}, {_JSONPATH}TEMPLATE"
    )
