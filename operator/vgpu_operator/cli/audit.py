"""`kubectl vgpu audit`: check that the records of nodes and ResourceClaims agree.

Each agent checks its own records, and `audit_resource_claims` the ResourceClaims; this module
merges and prints the results.
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


def has_error(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if an agent did not respond or records could not be compared."""
    return any("error" in each for each in documents)


def has_findings(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if records disagree."""
    return any(each.get("findings") for each in documents)


def show(document: Mapping[str, Any], printer: Printer) -> None:
    """Print one line about a node or the ResourceClaims, and one for each disagreement."""
    who = document.get("node", "ResourceClaims")
    if "error" in document:
        verb = "asked" if "node" in document else "compared"
        printer.line(f"{who}: not {verb}: {document['error']}")
        return
    findings = document["findings"]
    compared = (
        f"{document['claims']} claims, {document['leases']} leases"
        if "node" in document
        else f"{document['resourceClaims']} of our driver"
    )
    if not findings:
        printer.line(f"{who}: all records agree ({compared})")
        return
    printer.line(f"{who}: {len(findings)} disagreements ({compared})")
    for each in findings:
        printer.line(f"{each['reason']} {each['subject']}: {each['message']}", by=2)
