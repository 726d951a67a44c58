"""A pytest plugin for mutants: property tests come last, small, always the same, and unshrunk.

A mutant that a plain test kills then costs no examples, and the same mutant has the same fate in
every run. Shrinking would explain a failure to a reader, and these have none.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

EXAMPLES = 15

settings.register_profile(
    "mutation",
    database=None,
    deadline=None,
    derandomize=True,
    max_examples=EXAMPLES,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("mutation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run plain tests first, and cut the examples of property tests to our number."""
    items.sort(key=lambda item: "property" in item.path.parts)
    for item in items:
        function, machine = getattr(item, "obj", None), getattr(item, "cls", None)
        _cut(getattr(function, "__func__", function), "_hypothesis_internal_use_settings")
        _cut(machine, "settings")


def _cut(owner: object, name: str) -> None:
    own = getattr(owner, name, None)
    if isinstance(own, settings) and own.max_examples > EXAMPLES:
        setattr(owner, name, settings(own, max_examples=EXAMPLES))
