"""The pods of HAMi's own examples are placed as by HAMi's own code.

tests/vectors/vendors/README.md describes how the vectors were made.
"""

from __future__ import annotations

from vendor_vectors import (
    HAMI_EXAMPLES,
    Question,
    decided,
    given_by_hami,
    given_here,
    questions,
    spec_of,
)
from vgpu_operator.dialects.containers import each_container

LEFT_ALONE = ("nvidia.com/mig-",)
"""MIG resources of NVIDIA's own plugin, for which nothing is configured here."""


def is_left_alone(question: Question) -> bool:
    return any(
        name.startswith(LEFT_ALONE)
        for place in each_container(question.pod)
        for name in place.container.resources.limits
    )


def test_each_pod_is_placed_or_refused_as_by_hami() -> None:
    compared = 0
    for question in questions(HAMI_EXAMPLES):
        if is_left_alone(question):
            continue
        spec, answer = spec_of(question.pod), question.answer
        assert not isinstance(spec, str), f"{question.name}: {spec}"
        plan = decided(question, spec)
        if "refused" in answer:
            assert plan.text == answer["refused"], question.name
        else:
            given = given_by_hami(answer, question.node)
            ours = given_here(question.pod, plan)
            if "kunlun" in question.name:  # HAMi takes the first of equal devices in its list
                ours, given = _amounts(ours), _amounts(given)
            assert ours == given, question.name
        compared += 1
    assert compared == 66


def _amounts(given: list[list[tuple[str, int, int]]]) -> list[list[tuple[str, int, int]]]:
    return [[("", memory, cores) for _, memory, cores in container] for container in given]


def test_a_pod_for_devices_of_another_plugin_asks_for_nothing_here() -> None:
    left = [question for question in questions(HAMI_EXAMPLES) if is_left_alone(question)]
    assert [spec_of(question.pod) for question in left] == [""]
