"""The command line `kubectl vgpu`: its parser, and the commands that read only files."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from vgpu_api.errors import BadInput, Fault, VgpuError
from vgpu_client.printing import printable
from vgpu_operator.cli import arguments
from vgpu_operator.cli.importing import checked, imported
from vgpu_operator.insight.documents import (
    BadDocument,
    json_file,
    json_lines,
    json_text,
    manifests,
    read_case,
    read_state,
)
from vgpu_operator.insight.offline_cluster import Cluster
from vgpu_operator.insight.question import Judge, question_of
from vgpu_operator.insight.simulate import Result, answer, refusal
from vgpu_operator.insight.workloads import MOST_PODS, holds_pods, pods_of

BAD_INPUT = 2


def main(given: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status, which is 2 if the input is invalid."""
    # the terminal's encoding may be unable to print some names
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if "_ARGCOMPLETE" in os.environ:  # a shell wants completions
        from vgpu_operator.cli.completion import complete

        complete(parser())
    options = parser().parse_args(given)
    if options.command in ("uninstall", "release"):
        # Imported only here: the client's libraries take a second to load.
        from vgpu_operator.cli.live import run

        return run(options)
    if options.command in arguments.COMMANDS:
        from vgpu_operator.cli.cluster_commands import run

        return run(options)
    try:
        if options.command == "import":
            print(imported(options.file), end="")
        elif options.command == "check":
            print(checked(options.file), end="")
        else:
            _simulate(options)
    except VgpuError as error:
        print(f"kubectl vgpu: {printable(str(error))}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    root = argparse.ArgumentParser(
        prog="kubectl vgpu", description="Inspect, explain and manage GPU slices."
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _simulate_arguments(commands)
    arguments.add_commands(commands)
    _removal_arguments(commands)
    check = commands.add_parser(
        "check",
        help="Validate a configuration and list keys that have no effect",
        description="Validate vgpu's configuration, or HAMi's in any of its forms: a ConfigMap, a "
        "configuration document or a values file. Lists keys that have no effect, and resource "
        "names that the manifests must be changed for. Each file is checked by itself, without a "
        "cluster. Exits with status 2 if a file is invalid.",
    )
    importing = commands.add_parser(
        "import",
        help="Convert another system's configuration, and list settings that cannot be converted",
        description="Convert HAMi's ConfigMaps, configuration documents and values files to one "
        "configuration of vgpu, and print it as YAML. Comments at the top list the settings that "
        "cannot be converted. No cluster is read or changed.",
    )
    importing.add_argument("system", choices=("hami",), help="System to import from")
    for command in (check, importing):
        command.add_argument(
            "-f",
            "--file",
            type=Path,
            action="append",
            required=True,
            help="YAML or JSON file; - reads standard input; may be repeated",
        )
    return root


def _removal_arguments(commands: arguments.Commands) -> None:
    uninstall = commands.add_parser(
        "uninstall",
        help="Remove vgpu from the cluster, even after a partial install",
        description="Delete all claims, all GPUDevices and all objects of vgpu, including its CRDs "
        "and namespaces, and remove what the agents wrote to nodes: CDI specs, mounts, state, "
        "annotations and the capacity of the GPU resource. Refuses to start while pods use GPUs, "
        "unless --delete-pods is given. Does not delete pending pods, or a Helm release: run helm "
        "uninstall afterwards. Use --dry-run to preview the steps. Anything that could not be "
        "removed is listed; run the command again to continue.",
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
        description="Mark all claims on the node as released, in place of its lost agent, so that "
        "the operator frees their devices. Refuses to start while the agent is alive, and while "
        "pods that use GPUs on the node have not ended, unless --delete-pods is given. Make sure "
        "that the node is down: containers of force-deleted pods may still be running. Does not "
        "change the Node, its GPUDevices or the host. You need permission to impersonate the "
        "operator's service account. Use --dry-run to preview the steps.",
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
        description="Show where a pod or claim would be placed, in the live cluster or in one "
        "described by a file. Nothing is created.",
    )
    simulate.add_argument(
        "--state",
        type=Path,
        help="JSON file with nodes, devices, quotas and claims (default: read the live cluster)",
    )
    simulate.add_argument(
        "-f",
        "--file",
        type=Path,
        help="YAML file with pods, VGPUClaims, workloads or lists; - reads standard input",
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
        help="File with one pod or claim per line, as JSON; those placed keep their devices for "
        "the lines that follow",
    )
    simulate.add_argument(
        "--admit", action="store_true", help="Run pods through vgpu's admission rules first"
    )
    arguments.add_output(simulate)
    arguments.add_cluster(simulate)


def _simulate(options: argparse.Namespace) -> None:
    given = [source for source in (options.file, options.many, options.cases) if source is not None]
    if len(given) != 1 or (options.cases is not None and options.state is not None):
        text = "simulate: use one of -f, --many and --cases; --cases takes no --state"
        raise BadDocument(text)
    if options.cases is not None:
        _cases(options)
    elif options.file is not None:
        _file(options)
    else:
        _many(options)


def _file(options: argparse.Namespace) -> None:
    """Place the pods of a file: one pod with the reasons of all nodes, several pods in turn."""
    cluster = _cluster(options)
    try:
        pods = _pods(manifests(options.file), cluster)
    except BadInput as error:
        raise BadDocument(f"{options.file}: {error}") from error
    if len(pods) == 1:
        _one(pods[0], cluster, options)
    else:
        _in_turn(((_name(pod, str(options.file)), pod) for pod in pods), cluster, options)


def _one(document: Mapping[str, Any], cluster: Judge, options: argparse.Namespace) -> None:
    try:
        question = question_of(document, cluster, admit=options.admit)
    except VgpuError as error:
        raise BadDocument(f"{options.file}: {error}") from error
    result, _ = answer(question, cluster)
    identity = _name(document, "")
    if options.output == "json":
        print(json.dumps({"id": identity, **result}, indent=2))
    else:
        print(_in_words(identity, result))


def _cases(options: argparse.Namespace) -> None:
    """Answer each line on its own; a line that cannot be read gets a refusal as its answer."""
    for source, line in json_lines(options.cases):
        try:
            case = read_case(json_text(line, source=source), source=source)
            cluster = Cluster(read_state(case.state, source=source), source=source)
        except VgpuError as error:
            print(json.dumps({"id": _case_id(line, source), **refusal(printable(str(error)))}))
            continue
        document = _claim(case.claim) if case.claim is not None else case.pod or {}
        print(json.dumps({"id": case.id, **_answered(document, cluster, options)[0]}))


def _case_id(line: str, source: str) -> str | int:
    """Return the id of a line that is not a valid case, or else its position in the file."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return source
    identity = document.get("id") if isinstance(document, dict) else None
    return identity if isinstance(identity, str | int) else source


def _many(options: argparse.Namespace) -> None:
    """Place the pods and claims of a file in turn. The file has one of them per line."""
    cluster = _cluster(options)
    _in_turn(_lines(options.many, cluster), cluster, options)


def _lines(path: Path, cluster: Judge) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and document of each pod and claim, reading each line only when needed."""
    for source, line in json_lines(path):
        document = json_text(line, source=source)
        if not isinstance(document, dict):
            raise BadDocument(f"{source}: Invalid value: must be a pod or a claim")
        if not holds_pods(document):
            yield _name(document, source), document
            continue
        try:
            pods = _pods([document], cluster)
        except BadInput as error:
            raise BadDocument(f"{source}: {error}") from error
        yield from ((_name(pod, source), pod) for pod in pods)


def _pods(documents: Sequence[Mapping[str, Any]], cluster: Judge) -> list[Mapping[str, Any]]:
    """Return the pods and claims in documents.

    Raises:
        BadInput: A workload is invalid, or there are too many pods.
    """
    nodes = list(cluster.nodes)
    found = itertools.chain.from_iterable(pods_of(document, nodes) for document in documents)
    pods = list(itertools.islice(found, MOST_PODS + 1))
    if len(pods) > MOST_PODS:
        raise BadInput(
            field="pods", fault=Fault.TOO_LONG, detail=f"may not be more than {MOST_PODS} pods"
        )
    return pods


def _in_turn(
    documents: Iterable[tuple[str, Mapping[str, Any]]],
    cluster: Judge,
    options: argparse.Namespace,
) -> None:
    """Place the documents in turn. A document that is placed keeps its devices."""
    placed = refused = 0
    not_judged: dict[str, None] = {}
    for name, document in documents:
        result, held = _answered(document, cluster, options, explain=False)
        if "notJudged" in result:
            not_judged[result["notJudged"]] = None
        placed += held
        refused += not held
        print(
            json.dumps({"id": name, **result}) if options.output == "json" else _line(name, result)
        )
    if options.output != "json":
        for line in not_judged:
            print(printable(line))
    summary = {"placed": placed, "refused": refused, "utilisation": cluster.utilisation()}
    print(json.dumps(summary) if options.output == "json" else _summed(summary))


def _answered(
    document: Mapping[str, Any],
    cluster: Judge,
    options: argparse.Namespace,
    *,
    explain: bool = True,
) -> tuple[Result, bool]:
    """Answer one document of several. Return the result, and True if it was placed."""
    try:
        question = question_of(document, cluster, admit=options.admit)
    except VgpuError as error:
        return refusal(str(error)), False
    result, outcome = answer(question, cluster, explain=explain)
    if question is None or outcome is None or outcome.refused:
        return result, False
    if not explain:
        cluster.charge(question, outcome)
    return result, True


def _cluster(options: argparse.Namespace) -> Judge:
    if options.state is None:
        from vgpu_operator.cli.read_cluster import read_cluster

        return asyncio.run(read_cluster(options.kubeconfig, options.context))
    source = str(options.state)
    return Cluster(read_state(json_file(options.state), source=source), source=source)


def _claim(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "claim"}, **raw, "kind": "VGPUClaim"}


def _name(document: Mapping[str, Any], otherwise: str) -> str:
    """Return the name of a document, or `otherwise` if the document has no valid name."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name else otherwise


def _line(name: str, result: Result) -> str:
    if result["refused"] is not None:
        return printable(f"{name}: refused: {result['refused']}")
    devices = ", ".join(map(_device, result["devices"]))
    return printable(f"{name}: {result['node']}: {devices}")


def _device(device: Mapping[str, Any]) -> str:
    instance, part = device.get("mig"), device.get("part")
    of = f"{instance['profile']} at {instance['start']}, " if instance else ""
    of = f"{part}, " if part else of
    amounts = f"{of}{device['memoryMiB']} MiB, {device['cores']} %"
    return f"{device['uuid']} ({amounts} for {device['container']})"


def _in_words(name: str, result: Result) -> str:
    lines = [_line(name, result)]
    if "notJudged" in result:
        lines.append(printable(result["notJudged"]))
    for node, facts in result["nodes"].items():
        why = facts["reasons"] or ("chosen" if node == result["node"] else "would serve")
        lines.append(f"  {printable(node)}: score {facts['score']:.2f}: {why}")
    return "\n".join(lines)


def _summed(summary: Mapping[str, Any]) -> str:
    used = ", ".join(f"{name} {percent} %" for name, percent in summary["utilisation"].items())
    return f"{summary['placed']} placed, {summary['refused']} refused; in use: {used}"


if __name__ == "__main__":
    sys.exit(main())
