"""An oracle shares no code with the code it judges: it imports only types of the product.

If an oracle calls a function of the product, a wrong rule in that function is wrong in the check,
too, and no run shows it. In this way the sum of a sidecar and an init container stayed wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PRODUCT = ("vgpu_api", "vgpu_client", "vgpu_operator", "vgpu_nodeagent")

API_TYPES = frozenset(
    {"vgpu_api.core", "vgpu_api.v1alpha1", "vgpu_api.names", "vgpu_api.resources"}
)
"""Kinds and the spelling of names."""
VALUES = {"vgpu_operator.demand": {"Demand", "KindDemand", "RequestDemand"},
          "vgpu_operator.placement": {"DeviceFacts"}}  # fmt: skip
"""The types of a question to placement."""
HELPERS = frozenset({"oracle", "vgpu_local.apiserver.storage"})
"""Modules of the tests that oracles may use: another oracle and the record of a write."""

ORACLES = ("oracle.py", "vgpu_local/checker.py", "plain_placement.py", "engine_campaign/judge.py",
           "engine_campaign/making_way.py", "engine_campaign/gangs.py",
           "engine_campaign/resource_claims.py")  # fmt: skip
CAMPAIGNS = ("engine_world.py", "world_states.py", "engine_campaign/machines.py",
             "engine_campaign/scheduler.py", "engine_campaign/group_cycle.py",
             "engine_campaign/own_preemption.py", "property/test_engine_states.py",
             "property/test_gate_states.py", "property/test_ledger_states.py",
             "property/test_slots_states.py", "property/test_placement_oracle.py",
             "property/test_placement_plans.py", "vgpu_local/soak.py",
             "vgpu_local/chaos/campaign.py", "vgpu_local/chaos/grant_observer.py")  # fmt: skip
DECIDES = {
    "vgpu_api.effective": {"effective_use", "out_of_order"},
    "vgpu_api.init_part": {
        "has_init_part",
        "without_init_part",
        "init_part_ended",
        "init_part_rerun",
        "init_requests",
        "init_containers",
        "ended_init_ids",
    },
    "vgpu_api.resize": {"*"},
    "vgpu_api.host": {"*"},
    "vgpu_operator.placement.constraints": {"most_at_once", "together", "ClaimUse", "Charge"},
    "vgpu_operator.ledger.shares": {"*"},
}
"""The functions that count the use of a claim or pod; a campaign must not call them."""


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield each imported module with the name from it, or with `*` for the module itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "*") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def shared_with_the_product(source: str) -> list[str]:
    """Return the product's imports of an oracle that are not types."""
    found = []
    for module, name in imports(source):
        is_value = name in VALUES.get(module, set())
        if module.split(".")[0] in PRODUCT and module not in API_TYPES and not is_value:
            found.append(f"{module}.{name}")
    return found


def helpers(source: str) -> list[str]:
    """Return the test modules that an oracle imports and that are not oracles."""
    roots = {path.stem for path in TESTS.iterdir()}
    return [
        module
        for module, _ in imports(source)
        if module.split(".")[0] in roots and module not in HELPERS
    ]


def decisions(source: str) -> list[str]:
    """Return the names that a campaign imports from the code that counts use."""
    return [
        f"{module}.{name}"
        for module, name in imports(source)
        for decides in (DECIDES.get(module, set()),)
        if decides and (name in decides or "*" in (name, *decides))
    ]


@pytest.mark.parametrize("oracle", ORACLES)
def test_an_oracle_imports_types_of_the_product_alone(oracle: str) -> None:
    source = (TESTS / oracle).read_text()
    assert shared_with_the_product(source) == []
    assert helpers(source) == []


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_a_campaign_counts_by_no_function_of_the_product(campaign: str) -> None:
    assert decisions((TESTS / campaign).read_text()) == []


@pytest.mark.parametrize(
    "planted",
    [
        "from vgpu_api.effective import effective_use",
        "from vgpu_operator.demand import Demand, WHOLE_MEMORY",
        "import vgpu_operator.ledger",
        "def f():\n    from vgpu_api.init_part import init_part_ended",
    ],
)
def test_a_planted_import_is_found(planted: str) -> None:
    assert shared_with_the_product(planted)


@pytest.mark.parametrize(
    "planted",
    ["from vgpu_api.effective import effective_use", "import vgpu_api.init_part",
     "from vgpu_operator.placement.constraints import Charge"],
)  # fmt: skip
def test_a_planted_call_of_what_counts_is_found_in_a_campaign(planted: str) -> None:
    assert decisions(planted)
    assert decisions("from vgpu_api.effective import Use") == []


def test_a_helper_that_is_no_oracle_is_found() -> None:
    assert helpers("from engine_world import World") == ["engine_world"]
