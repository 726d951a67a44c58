"""The command line `kubectl vgpu`: its parser, and the commands that read only files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from vgpu_api.errors import VgpuError
from vgpu_client.printing import printable
from vgpu_operator.cli import arguments
from vgpu_operator.cli.parsing import Parser

BAD_INPUT = 2


def main(given: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status, which is 2 if the input is invalid."""
    # the terminal's encoding may be unable to print some names
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if "_ARGCOMPLETE" in os.environ:  # a shell wants completions
        from vgpu_operator.cli.completion import complete

        complete(parser())
    root = parser()
    options = root.parsed(given)
    if options.command is None:
        root.print_help()
        return 0
    if options.command in ("uninstall", "release", "migrate"):
        # Imported only here: the client's libraries take a second to load.
        from vgpu_operator.cli.live import run

        return run(options)
    is_live_import = options.command == "import" and not options.file
    if options.command in arguments.COMMANDS or is_live_import:
        from vgpu_operator.cli.cluster_commands import run

        return run(options)
    try:
        _run_on_files(options)
    except VgpuError as error:
        print(f"kubectl vgpu: {printable(str(error))}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _run_on_files(options: argparse.Namespace) -> None:
    """Run a command that reads files.

    Each is imported only here: the models of the configuration and the engine take a quarter of a
    second and more to load.
    """
    if options.command == "simulate":
        from vgpu_operator.cli import simulate

        simulate.run(options)
        return
    from vgpu_operator.cli.importing import checked, imported

    print({"import": imported, "check": checked}[options.command](options.file), end="")


def parser() -> Parser:
    """Return the parser of all commands."""
    root = Parser(prog="kubectl vgpu", description="Inspect, explain and manage GPU slices.")
    commands = root.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    _simulate_arguments(commands)
    arguments.add_commands(commands)
    _removal_arguments(commands)
    check = commands.add_parser(
        "check",
        help="Validate a configuration and list keys that have no effect",
        description="Validate vgpu's configuration, or HAMi's in any of its forms: a ConfigMap, a "
        "configuration document or a values file. Lists keys that have no effect, and resource "
        "names that must be added to the manifests of the webhook and the scheduler. Each file is "
        "checked on its own, without a cluster. Exits with status 2 if a file is invalid.",
    )
    importing = commands.add_parser(
        "import",
        help="Convert another system's configuration, and list settings that cannot be converted",
        description="Convert HAMi's ConfigMaps, configuration documents and values files into a "
        "single vgpu configuration, and print it as YAML. Without files, convert the ConfigMaps "
        "and scheduler arguments of the HAMi installation in the cluster. Comments at the top list "
        "the settings that cannot be converted. Nothing is changed.",
    )
    importing.add_argument("system", choices=("hami",), help="System to import from")
    for command in (check, importing):
        command.add_argument(
            "-f",
            "--file",
            type=Path,
            action="append",
            required=command is check,
            help="YAML or JSON file; - reads standard input; may be repeated",
        )
    arguments.add_cluster(importing)
    _migrate_arguments(commands)
    return root


def _migrate_arguments(commands: arguments.Commands) -> None:
    migrate = commands.add_parser(
        "migrate",
        help="Take over nodes from HAMi while their pods run",
        description="Take over nodes from HAMi one by one: cordon the node, move it from HAMi's "
        "device plugin to vgpu's agent, reserve what HAMi's pods use on it until they end, and "
        "uncordon it. Before changing anything, list HAMi's settings that are not carried over, "
        "pods that vgpu would refuse, and any obstacles. If there are obstacles, stop without "
        "making any changes. You need permission to impersonate the operator's service account. "
        "Use --dry-run to preview the steps. If the command is interrupted, run it again to "
        "continue.",
    )
    migrate.add_argument("system", choices=("hami",), help="System to take over nodes from")
    migrate.add_argument(
        "--node", help="Take over only this node (default: all nodes that HAMi manages)"
    )
    migrate.add_argument("--undo", action="store_true", help="Give nodes back to HAMi instead")
    arguments.add_plan(migrate)
    arguments.add_cluster(migrate)


def _removal_arguments(commands: arguments.Commands) -> None:
    uninstall = commands.add_parser(
        "uninstall",
        help="Remove vgpu from the cluster, even after a partial install",
        description="Delete all claims, GPUDevices and other vgpu objects, including the CRDs and "
        "namespaces. Also remove what the agents wrote to nodes: CDI specs, mounts, state, "
        "annotations and the GPU resource's capacity. Refuses to start while pods use GPUs, "
        "unless --delete-pods is given, and while nodes are taken over from a HAMi that is still "
        "installed. Pending pods are not deleted. Neither is a Helm release: run helm uninstall "
        "afterwards. Use --dry-run to preview the steps. Anything that could not be removed is "
        "listed; run the command again to continue.",
    )
    uninstall.add_argument(
        "--no-wait-for-capacity",
        action="store_true",
        help="Skip the wait (about five minutes) for kubelets to remove the resource; nodes may "
        "then keep a capacity of 0",
    )
    uninstall.add_argument(
        "--delete-pods", action="store_true", help="First, delete all pods that use GPUs"
    )
    release = commands.add_parser(
        "release",
        help="Free the devices of a node whose agent is lost",
        description="Mark all claims on the node as released on behalf of its lost agent, so that "
        "the operator frees their devices. Refuses to start while the agent is alive. Also "
        "refuses if any pods that use GPUs on the node have not ended, unless --delete-pods is "
        "given. Make sure that the node is down: containers of force-deleted pods may still be "
        "running. Does not change the Node, its GPUDevices or the host. You need permission to "
        "impersonate the operator's service account. Use --dry-run to preview the steps.",
    )
    release.add_argument("--node", required=True, help="Name of the node")
    release.add_argument(
        "--delete-pods",
        action="store_true",
        help="First, force-delete all pods that use GPUs on the node",
    )
    for command in (uninstall, release):
        arguments.add_plan(command)
        arguments.add_cluster(command)


def _simulate_arguments(commands: arguments.Commands) -> None:
    simulate = commands.add_parser(
        "simulate",
        help="Show where a pod or claim would be placed",
        description="Show where pods and claims would be placed, in the live cluster or in one "
        "described by a file, and which pods would be evicted to make room. Nothing is created "
        "and no pods are evicted.",
    )
    simulate.add_argument(
        "--state",
        type=Path,
        help="JSON file with nodes, devices, quotas, claims and pods (default: read the live "
        "cluster)",
    )
    simulate.add_argument(
        "-f",
        "--file",
        type=Path,
        help="YAML file with pods, VGPUClaims, workloads or lists; it may include the PodGroups, "
        "PriorityClasses, ResourceClaims and ResourceClaimTemplates that the pods use; - reads "
        "standard input",
    )
    simulate.add_argument(
        "--cases",
        type=Path,
        help="File with one test case per line, each with its own cluster state: a JSON object "
        "with the keys id, state, and pod or claim; results are always JSON",
    )
    simulate.add_argument(
        "--many",
        type=Path,
        help="File with one pod or claim per line, as JSON; each one that is placed keeps its "
        "devices while later lines are placed",
    )
    simulate.add_argument(
        "--admit", action="store_true", help="Run pods through vgpu's admission rules first"
    )
    arguments.add_output(simulate)
    arguments.add_cluster(simulate)


if __name__ == "__main__":
    sys.exit(main())
