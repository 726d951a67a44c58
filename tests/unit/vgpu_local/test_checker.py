"""The checker finds what it is for, or its silence means nothing."""

from __future__ import annotations

from typing import Any

import orjson

from builders import a_claim, a_device, a_request, an_allocated_device, an_allocation
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.checker import excesses


def wrote(kind: str, model: Any, version: int, type_: str = "MODIFIED") -> WriteEvent:
    return WriteEvent(type_, f"{kind}.vgpu.dev", version, orjson.dumps(model.to_wire()))


def holding(name: str, mib: int, *, phase: str = "App") -> Any:
    return a_claim(
        name,
        requests=[a_request(name="main", phase=phase)],
        allocation=an_allocation(an_allocated_device(request="main", memory_mib=mib)),
    )


CARD = wrote("gpudevices", a_device(memory_mib=10_000, slots=10), 1)


def test_a_card_that_holds_what_it_has_is_no_excess() -> None:
    history = [CARD]
    history += [wrote("vgpuclaims", holding(f"c{i}", 5000), 2 + i) for i in range(2)]
    assert excesses(history) == []


def test_a_moment_of_too_much_is_found_even_when_it_passes() -> None:
    history = [
        CARD,
        wrote("vgpuclaims", holding("a", 5000), 2),
        wrote("vgpuclaims", holding("b", 5001), 3),
        wrote("vgpuclaims", a_claim("b", requests=[a_request(name="main")]), 4),
    ]
    (excess,) = excesses(history)
    assert (excess.uuid, excess.resource_version, excess.use.memory_mib) == ("GPU-0", 3, 10_001)


def test_a_deleted_claim_holds_nothing() -> None:
    history = [
        CARD,
        wrote("vgpuclaims", holding("a", 8000), 2),
        wrote("vgpuclaims", holding("a", 8000), 3, "DELETED"),
        wrote("vgpuclaims", holding("b", 8000), 4),
    ]
    assert excesses(history) == []


def test_a_card_that_was_never_published_may_hold_nothing() -> None:
    assert excesses([wrote("vgpuclaims", holding("a", 1), 1)])
