"""`kubectl vgpu simulate`: show where the pods and claims of a file would go."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pydantic.alias_generators import to_camel

from vgpu_api.errors import VgpuError
from vgpu_client.printing import printable
from vgpu_operator.cli.paper_cluster import PaperCluster
from vgpu_operator.insight.documents import (
    BadDocument,
    json_file,
    json_lines,
    json_text,
    manifests,
    read_case,
    read_state,
)
from vgpu_operator.insight.manifest import Answered, Manifest, Simulation, WholeCluster
from vgpu_operator.insight.question import Outcome, Question
from vgpu_operator.insight.simulate import NO_GPU, Result, answer, refusal
from vgpu_operator.insight.workloads import MOST_PODS

_WIDTH = 80
_NOT_ENDED = (
    "Nobody is evicted here, so a pod that would preempt counts as refused. For the pods after it "
    "its victims are ending, and their devices are kept for it."
)


def run(options: argparse.Namespace) -> None:
    """Answer the questions in the files.

    Raises:
        VgpuError: A file cannot be used, or the cluster cannot be read.
    """
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
    manifest = Manifest(list(cluster.nodes), MOST_PODS)
    manifest.add(manifests(options.file), str(options.file))
    if len(manifest.items()) != 1:
        _in_turn(cluster, manifest, options)
        return
    (found,) = _answers(cluster, manifest, options, explain=True)
    if found.error is not None:
        raise BadDocument(f"{options.file}: {found.error}") from found.error
    identity = "" if found.item.name == str(options.file) else found.item.name
    result = _result(found)
    if options.output == "json":
        print(json.dumps({"id": identity, **result}, indent=2))
    else:
        print("\n".join(_in_words(identity, result)))


def _cases(options: argparse.Namespace) -> None:
    """Answer each line on its own; a line that cannot be read gets a refusal as its answer."""
    for source, line in json_lines(options.cases):
        try:
            case = read_case(json_text(line, source=source), source=source)
            cluster = PaperCluster(read_state(case.state, source=source), source=source)
        except VgpuError as error:
            print(json.dumps({"id": _case_id(line, source), **refusal(printable(str(error)))}))
            continue
        document = _claim(case.claim) if case.claim is not None else case.pod or {}
        manifest = Manifest(list(cluster.nodes), 1)
        manifest.put(document, source)
        (found,) = _answers(cluster, manifest, options, explain=True)
        print(json.dumps({"id": case.id, **_result(found)}))


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
    manifest = Manifest(list(cluster.nodes), MOST_PODS)
    for source, line in json_lines(options.many):
        document = json_text(line, source=source)
        if not isinstance(document, dict):
            raise BadDocument(f"{source}: Invalid value: must be a pod or a claim")
        manifest.add([document], source, keeps_all=True)
    _in_turn(cluster, manifest, options)


def _in_turn(cluster: WholeCluster, manifest: Manifest, options: argparse.Namespace) -> None:
    """Place all items in turn. What is placed keeps its devices."""
    as_json = options.output == "json"
    counted: Counter[bool] = Counter()
    notes = _Notes()
    for found in _answers(cluster, manifest, options, explain=False):
        result = _result(found)
        counted[found.is_placed] += 1
        notes.add(found.item.name, result)
        if as_json:
            print(json.dumps({"id": found.item.name, **result}))
        else:
            print("\n".join([*_lines(found.item.name, result), *notes.preemption(result)]))
    if not as_json:
        for line in notes.lines():
            print(line)
    summary = {
        "placed": counted[True],
        "refused": counted[False],
        "utilisation": cluster.utilisation(),
    }
    print(json.dumps(summary) if as_json else _summed(summary))


def _answers(
    cluster: WholeCluster, manifest: Manifest, options: argparse.Namespace, *, explain: bool
) -> Iterator[Answered[Result]]:
    return _Simulation(cluster, manifest, admit=options.admit, explain=explain).answers()


class _Simulation(Simulation[Result]):
    """A simulation that keeps the result to print; with `explain`, also of each node."""

    def __init__(
        self, cluster: WholeCluster, manifest: Manifest, *, admit: bool, explain: bool
    ) -> None:
        super().__init__(cluster, manifest, admit=admit)
        self._explain = explain

    def decide(self, question: Question) -> tuple[Result, Outcome]:
        return answer(question, self._cluster, explain=self._explain)


def _cluster(options: argparse.Namespace) -> WholeCluster:
    if options.state is None:
        return _installed_cluster(options)
    source = str(options.state)
    return PaperCluster(read_state(json_file(options.state), source=source), source=source)


def _installed_cluster(options: argparse.Namespace) -> WholeCluster:
    # Imported only here, because the client's libraries take most of a second to load.
    from vgpu_operator.cli.listing import NotInstalled

    try:
        return asyncio.run(_live_cluster(options))
    except NotInstalled:
        if not options.admit:
            raise
    # Admission can be asked about before anything is installed.
    print(
        "kubectl vgpu: vgpu is not installed in this cluster, so only admission is judged: "
        "NoGPUNodes means that the pod would be accepted",
        file=sys.stderr,
    )
    return PaperCluster(read_state({}, source="state"), source="state")


async def _live_cluster(options: argparse.Namespace) -> WholeCluster:
    # Imported only here: the client's libraries take most of a second to load.
    from vgpu_client.errors import Forbidden
    from vgpu_operator.cli.access import connected
    from vgpu_operator.cli.read_cluster import read_cluster
    from vgpu_operator.cli.rights import INSTEAD_OF_SIMULATE, lacking

    async with connected(options) as api:
        try:
            return await read_cluster(api)
        except Forbidden as error:
            raise lacking(error, INSTEAD_OF_SIMULATE) from error


def _claim(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "claim"}, **raw, "kind": "VGPUClaim"}


# Results.


def _result(found: Answered[Result]) -> Result:
    """Return the result to print: the decision, and what belongs to it."""
    if found.shown is None:
        result = refusal(found.refused or NO_GPU)
    elif found.refused:
        # The pod alone may have found devices, but its group gets none.
        result = {**found.shown, "node": None, "devices": [], "refused": found.refused}
    else:
        result = dict(found.shown)
    if found.preemption is not None:
        result["preemption"] = _camel(asdict(found.preemption))
    if found.group is not None:
        result["group"] = _camel(asdict(found.group))
    if found.warnings:
        result["warnings"] = found.warnings
    return result


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {to_camel(name): value for name, value in fields.items()}


class _Notes:
    """Notes to print once, after all items: skipped checks and warnings."""

    def __init__(self) -> None:
        self._not_judged: dict[str, None] = {}
        self._warned: dict[str, list[str]] = {}
        self._preempts = False
        self._of_groups: set[str] = set()

    def add(self, name: str, result: Result) -> None:
        """Note what belongs to a result."""
        if "notJudged" in result:
            self._not_judged[result["notJudged"]] = None
        for text in result.get("warnings", ()):
            self._warned.setdefault(text, []).append(name)
        preemption = result.get("preemption", {})
        self._preempts |= bool(preemption.get("nodes"))
        if preemption and not _is_known(preemption):
            self._not_judged[preemption["message"]] = None

    def preemption(self, result: Result) -> list[str]:
        """Return the lines about the pods to evict; for a group, only at the first of its pods."""
        preemption, group = result.get("preemption"), result.get("group")
        if preemption is None or not _is_known(preemption):
            return []
        if group is not None and not group["starts"]:
            if group["name"] in self._of_groups:
                return []
            self._of_groups.add(group["name"])
        return _wrapped(preemption["message"], by="  ")

    def lines(self) -> Iterator[str]:
        """Yield the lines."""
        for text in self._not_judged:
            yield printable(text)
        for text, pods in self._warned.items():
            more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
            yield from _wrapped(f"Warning: {pods[0]}{more}: {text}")
        if self._preempts:
            yield from _wrapped(_NOT_ENDED)


def _is_known(preemption: Mapping[str, Any]) -> bool:
    """Return True if it is known which pods would be evicted, or why none would be."""
    return bool(preemption["nodes"] or preemption["whyNot"])


def _in_words(name: str, result: Result) -> list[str]:
    """Return the lines about a single item, with its nodes."""
    lines = _lines(name, result)
    if "notJudged" in result:
        lines.append(printable(result["notJudged"]))
    for node, facts in result["nodes"].items():
        why = facts["reasons"] or ("chosen" if node == result["node"] else "would serve")
        lines.append(f"  {printable(node)}: score {facts['score']:.2f}: {why}")
    if "preemption" in result:
        lines += _wrapped(result["preemption"]["message"])
    for text in result.get("warnings", ()):
        lines += _wrapped(f"Warning: {text}")
    return lines


def _lines(name: str, result: Result) -> list[str]:
    if result["refused"] is not None:
        return _wrapped(f"{name}: refused: {result['refused']}")
    devices = ", ".join(map(_device, result["devices"]))
    return [printable(f"{name}: {result['node']}: {devices}")]


def _device(device: Mapping[str, Any]) -> str:
    instance, part = device.get("mig"), device.get("part")
    of = f"{instance['profile']} at {instance['start']}, " if instance else ""
    of = f"{part}, " if part else of
    amounts = f"{of}{device['memoryMiB']} MiB, {device['cores']} %"
    return f"{device['uuid']} ({amounts} for {device['container']})"


def _wrapped(text: str, *, by: str = "") -> list[str]:
    """Return a text as lines that fit a terminal; names and paths stay whole."""
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=by,
        subsequent_indent=by + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summed(summary: Mapping[str, Any]) -> str:
    used = ", ".join(f"{name} {percent} %" for name, percent in summary["utilisation"].items())
    return f"{summary['placed']} placed, {summary['refused']} refused; in use: {used}"
