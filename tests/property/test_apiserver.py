"""What must hold of the stand-in API server for any input."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rest import thing_definition
from vgpu_api import quantity
from vgpu_local.apiserver import crd
from vgpu_local.apiserver.apply import apply
from vgpu_local.apiserver.errors import StatusError
from vgpu_local.apiserver.kinds import Obj
from vgpu_local.apiserver.ownership import Manager, Owners, leaves, read, shown
from vgpu_local.apiserver.patch import merge_patch
from vgpu_local.apiserver.quantities import canonical, value_of
from vgpu_local.apiserver.structure import root

THING = crd.resource_of(thing_definition())
SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "E-2"]
QUANTITIES = st.builds(
    lambda sign, whole, part, suffix: f"{sign}{whole}{part}{suffix}",
    st.sampled_from(["", "-", "+"]),
    st.integers(0, 10**7),
    st.sampled_from(["", ".5", ".25", ".001"]),
    st.sampled_from(SUFFIXES),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@given(QUANTITIES)
def test_canonical_keeps_the_value_and_settles(text: str):
    """Invariants: canonical(x) means what x means; written back, it changes once more at most.

    That once is `1025.5Ki`: bytes that no binary suffix divides lose theirs and are decimal then.
    """
    kept = canonical(text)
    assert value_of(kept) == value_of(text)
    assert canonical(canonical(kept)) == canonical(kept)


@given(QUANTITIES)
def test_what_the_server_writes_our_own_reader_understands(text: str):
    """Invariant: the server's and the project's readers agree on every canonical quantity."""
    kept = canonical(text)
    assert quantity.parse(kept) == value_of(kept)
    assert isinstance(value_of(kept), Fraction)


@given(JSON, JSON)
def test_a_merge_patch_applied_twice_changes_nothing_the_second_time(target: Any, patch: Any):
    """Invariant: merge patches are idempotent."""
    once = merge_patch(copy.deepcopy(target), copy.deepcopy(patch))
    twice = merge_patch(copy.deepcopy(once), copy.deepcopy(patch))
    assert once == twice


def configurations() -> st.SearchStrategy[Obj]:
    """What a manager may apply to a Thing: any part of its spec, keyed items included."""
    item = st.fixed_dictionaries(
        {"name": st.sampled_from("abc")}, optional={"memory": st.integers(1, 2)}
    )
    spec = st.fixed_dictionaries(
        {},
        optional={
            "size": st.integers(1, 2),
            "mode": st.sampled_from("AB"),
            "uuids": st.lists(st.sampled_from(["GPU-1", "GPU-2"]), max_size=2),
            "requests": st.lists(
                item, min_size=1, max_size=3, unique_by=lambda entry: entry["name"]
            ),
        },
    )
    return spec.map(
        lambda spec: {
            "apiVersion": "example.dev/v1",
            "kind": "Thing",
            "metadata": {},
            "spec": spec,
        }
    )


Steps = st.lists(st.tuples(st.sampled_from(["one", "two"]), configurations()), max_size=6)


@given(Steps)
def test_after_any_applies_every_manager_finds_what_it_applied_last(steps: list[tuple[str, Obj]]):
    """Invariants of server-side apply, forced or not.

    What a manager owns is in the object with the value it sent; nothing in the object
    is without an owner; applying the same again changes nothing; owners survive a write and a read.
    """
    live: Obj = {"metadata": {}}
    owners: Owners = {}
    place = root(THING.schema)
    for name, wanted in steps:
        manager = Manager(name, "Apply")
        options: dict[str, Any] = {"manager": manager, "time": "now"}
        try:
            done = apply(THING, live, owners, wanted, force=False, **options)
        except StatusError:
            done = apply(THING, live, owners, wanted, force=True, **options)
        live, owners = done.obj, done.owners
        now, sent = leaves(live, place), leaves(wanted, place)
        assert all(now[path] == value for path, value in sent.items() if path in now)
        assert sent.keys() - now.keys() <= {path for path in sent if sent[path] in ({}, [])}
        again = apply(THING, live, owners, wanted, force=False, **options)
        assert again.obj == live
        owned = {path for share in owners.values() for path in share.paths}
        assert {path for path in now if now[path] not in ({}, [])} <= owned
        written = shown(owners, "example.dev/v1")
        assert written is not None
        assert {m: s.paths for m, s in read(written).items() if s.paths} == {
            m: s.paths for m, s in owners.items() if s.paths
        }
