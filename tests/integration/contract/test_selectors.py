"""Selectors choose objects, and a Table shows the columns of a kind."""

from __future__ import annotations

import pytest

from rest import PODS, SECRETS, THINGS, Json, Refused, Rest, a_pod, a_thing

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
LABELS: dict[str, dict[str, str]] = {
    "none": {},
    "one": {"a": "1"},
    "both": {"a": "1", "b": "2", "x.dev/a": "1"},
    "two": {"a": "2"},
    "empty": {"a": ""},
}


async def test_a_label_selector_selects(rest: Rest):
    for name, labels in LABELS.items():
        await rest.create(SECRETS, {"metadata": {"name": name, "labels": labels}})
    for selector, names in {
        "a=1": ["both", "one"],
        "a==1,b!=2": ["one"],
        "a in (1, 2)": ["both", "one", "two"],
        "a notin (1,2)": ["empty", "none"],
        "a": ["both", "empty", "one", "two"],
        "!a": ["none"],
        "x.dev/a=1": ["both"],
    }.items():
        assert await rest.names(SECRETS, labelSelector=selector) == names, selector


async def test_a_field_selector_selects(rest: Rest):
    await rest.create(PODS, a_pod("free"))
    await rest.create(PODS, a_pod("bound", nodeName="n1"))
    for selector, names in {
        "spec.nodeName=n1": ["bound"],
        "spec.nodeName!=n1": ["free"],
        "spec.nodeName=": ["free"],
        "spec.nodeName=n1,status.phase=Running": [],
        "metadata.name=free,status.phase=Pending": ["free"],
    }.items():
        assert await rest.names(PODS, fieldSelector=selector) == names, selector


async def test_a_selector_that_the_server_does_not_take_is_400(rest: Rest):
    for query in ({"labelSelector": "a in 1"}, {"fieldSelector": "spec.image=x"}):
        with pytest.raises(Refused) as refused:
            await rest.get(PODS, **query)
        assert refused.value.status == 400


async def rows(rest: Rest, path: str) -> tuple[list[Json], list[list[object]]]:
    table = await rest.get(path, accept=TABLE)
    assert {row["object"]["kind"] for row in table["rows"]} == {"PartialObjectMetadata"}
    return table["columnDefinitions"], [row["cells"] for row in table["rows"]]


async def test_a_table_has_the_columns_of_the_definition(things: Rest):
    thing = a_thing()
    thing["metadata"]["annotations"] = {"a.b/c": "noted"}
    await things.create(THINGS, thing)
    conditions = [{"type": kind, "status": value} for kind, value in (("A", "x"), ("B", "y"))]
    status = {"state": "Ready", "node": "n1", "conditions": conditions}
    await things.merge(f"{THINGS}/t/status", {"status": status})
    columns, (cells,) = await rows(things, THINGS)
    named = {column["name"]: column["priority"] for column in columns}
    assert named == {"Name": 0, "State": 0, "Node": 1, "Noted": 0, "B": 0, "Types": 0, "Age": 0}
    assert cells[:6] == ["t", "Ready", "n1", "noted", "y", "A"]
    assert str(cells[6]).endswith("s")


async def test_a_table_of_pods_shows_their_state(rest: Rest):
    await rest.create(PODS, a_pod())
    columns, (cells,) = await rows(rest, PODS)
    shown = dict(zip([column["name"] for column in columns], cells, strict=True))
    assert (shown["Name"], shown["Ready"], shown["Status"]) == ("p", "0/1", "Pending")
