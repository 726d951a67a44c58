"""Our decisions about other vendors' devices are the same as HAMi's recorded decisions.

tests/vectors/vendors/README.md describes how the vectors were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from serving_in_turn import serving_in_turn
from vendor_vectors import (
    Question,
    allocation_of,
    answers,
    decided,
    files,
    given_by_hami,
    given_here,
    limits_here,
    questions,
    records,
    spec_of,
)
from vgpu_api import quantity
from vgpu_api.v1alpha1 import VGPUClaimSpec


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
@serving_in_turn()
def test_pods_are_placed_as_hami_places_them(path: Path) -> None:
    """A pod is denied, ignored, refused for the same reasons, or gets the same parts of devices.

    HAMi never revises a choice, so a pod's first container may leave too little for the next.
    """
    answered = 0
    for question in questions(path):
        assert _ours(question) == _hamis(question), question.name
        answered += 1
    assert answered > 100


def _ours(question: Question) -> object:
    spec = spec_of(question.pod)
    if isinstance(spec, str):
        return "denied" if spec else "unserved"
    plan = decided(question, spec)
    if plan.refused:
        return _reasons(question, plan.text.replace("1/1 Node", "Node"))
    return _asking(question, given_here(question.pod, plan))


def _hamis(question: Question) -> object:
    answer = question.answer
    if "denied" in answer:
        return "denied"
    if "unserved" in answer:
        return "unserved"
    if "refused" in answer:
        return _reasons(question, answer["refused"])
    return _asking(question, given_by_hami(answer, question.node))


def _reasons(question: Question, text: str) -> frozenset[str]:
    """Return the reasons of a refusal, in any order.

    For devices that come in modules, HAMi counts out of the requested number, and includes counts
    of 0; here all counts are out of the node's devices. A GCU in use counts here as a device
    without free slots, like every device that serves one request. An unhealthy MetaX device has the
    same word as other vendors' devices.
    """
    parts = text.split(", ")
    if question.name.startswith("ascend910c"):
        words = {part.rpartition(" ")[2] for part in parts}
        return frozenset(words - {"AllocatedCardsInsufficientRequest"})
    if question.name.startswith("kunlunxin"):
        return frozenset(
            {"refused"}
        )  # HAMi reports NumaNotFit for the node, for any reason of its devices
    if question.name.startswith("aws-neuron") and "NumaNotFit" in question.answer["refused"]:
        return frozenset({"refused"})  # HAMi reports it for several devices, for any reason
    if question.name.startswith("metax-sgpu"):
        parts = [part.replace("CardUnhealthy", "CardNotHealth") for part in parts]
    if question.name.startswith("enflame-gcu"):
        words = ("ExclusiveDeviceAllocateConflict", "CardTimeSlicingExhausted")
        parts = [part.replace(*words) for part in parts]
    return frozenset(parts)


def _asking(question: Question, given: list[list[tuple[str, int, int]]]) -> list[object]:
    """Return the devices of the containers that got any.

    HAMi v2.10.0 leaves the others out of its records if a device's type is a model's name (its
    issue 2899, fixed later), so its records of later containers are shifted.
    """
    return [_several(question, container) for container in given if container]


def _several(question: Question, given: list[tuple[str, int, int]]) -> object:
    """Return the amounts of several devices, and how many devices come from each group.

    HAMi selects one of equal groups at random. For Kunlunxin, HAMi's halves of a server are halves
    of a list that it sorts by use, and ours are those of the server, so only amounts are compared.
    A MetaX device that serves a request alone also comes from such a group.
    """
    alone = question.name.startswith("metax-sgpu") and all(cores == 100 for _, _, cores in given)
    if question.name.startswith("kunlunxin") or (alone and len(given) == 1):
        return sorted(amounts for _, *amounts in given)
    if len(given) == 1 or not question.groups:
        return given
    counts = Counter(question.groups.get(uuid, "") for uuid, _, _ in given)
    return sorted(counts.values()), sorted(amounts for _, *amounts in given)


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_plugins_read_back_what_hami_writes_for_them(path: Path) -> None:
    compared = 0
    for name, pod, node, answer in answers(path):
        if "devices" not in answer or [] in given_by_hami(answer, node):
            continue
        spec = spec_of(pod)
        assert isinstance(spec, VGPUClaimSpec)
        written = records(pod, spec, allocation_of(pod, answer, node), node)
        assert written == answer["annotations"], name
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_admission_writes_the_amounts_that_hami_writes(path: Path) -> None:
    """The kubelet calls the vendor's plugin with the amounts in the limits."""
    compared = 0
    for _, pod, _, answer in answers(path):
        if "limits" in answer:
            written = [_plain(limits) for limits in answer["limits"]]
            assert [_plain(limits) for limits in limits_here(pod)] == written
            compared += 1
    assert compared > 50


def _plain(limits: Mapping[str, str | int]) -> dict[str, object]:
    return {name: quantity.parse(amount) for name, amount in limits.items()}
