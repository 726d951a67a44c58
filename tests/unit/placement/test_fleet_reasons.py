"""Each reason that depends on a device's properties has a column in the counts of the fleet."""

from __future__ import annotations

import ast
import inspect

from vgpu_api.reasons import Reason
from vgpu_operator.placement.device_conditions import refusal_of_facts
from vgpu_operator.placement.fleet import REASONS


def test_a_reason_of_a_devices_facts_has_a_column() -> None:
    """A missing column is a KeyError in the first decision about such a device."""
    tree = ast.parse(inspect.getsource(refusal_of_facts))
    named = {
        Reason[node.attr]
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Reason"
    }
    assert named, "the function names its reasons as Reason.NAME"
    missing = named - set(REASONS)
    assert not missing, f"add them to REASONS in placement/fleet.py: {missing}"
