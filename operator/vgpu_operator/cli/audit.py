"""`kubectl vgpu audit`: check that the records on every node agree with each other.

Each agent checks its own records; this module merges and prints the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vgpu_operator.cli.agents import AgentAnswers
from vgpu_operator.cli.printing import Printer


def by_node(answers: AgentAnswers) -> list[Mapping[str, Any]]:
    """Return one document per node, sorted by name; a node without a response has an `error`."""
    errors = {node: {"node": node, "error": why} for node, why in answers.errors.items()}
    found = {**answers.nodes, **errors}
    return [found[node] for node in sorted(found)]


def has_error(nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if an agent did not respond or could not compare its records."""
    return any("error" in node for node in nodes)


def has_findings(nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the records on a node disagree."""
    return any(node.get("findings") for node in nodes)


def show(node: Mapping[str, Any], printer: Printer) -> None:
    """Print one line about a node and one for each disagreement."""
    if "error" in node:
        printer.line(f"{node['node']}: not asked: {node['error']}")
        return
    findings = node["findings"]
    compared = f"{node['claims']} claims, {node['leases']} leases"
    if not findings:
        printer.line(f"{node['node']}: all records agree ({compared})")
        return
    printer.line(f"{node['node']}: {len(findings)} disagreements ({compared})")
    for each in findings:
        printer.line(f"{each['reason']} {each['subject']}: {each['message']}", by=2)
