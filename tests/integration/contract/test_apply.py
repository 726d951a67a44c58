from __future__ import annotations

from typing import Any

import pytest

from rest import THINGS, Json, Refused, Rest, a_pod, a_thing

STATUS = f"{THINGS}/t/status"


def conditions(*pairs: tuple[str, str]) -> Json:
    return {"status": {"conditions": [{"type": t, "status": s} for t, s in pairs]}}


def a_status(**status: Any) -> Json:
    return {"apiVersion": "example.dev/v1", "kind": "Thing", "status": status}


async def test_apply_creates_what_is_absent_and_then_changes_nothing(things: Rest):
    first = await things.apply(f"{THINGS}/t", a_thing(), "me")
    again = await things.apply(f"{THINGS}/t", a_thing(), "me")
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert first["metadata"]["name"] == "t"


async def test_apply_removes_what_its_manager_sends_no_more(things: Rest):
    await things.apply(f"{THINGS}/t", a_thing(uuids=["GPU-1"], mode="B"), "me")
    applied = await things.apply(f"{THINGS}/t", a_thing(mode="B"), "me")
    assert "uuids" not in applied["spec"]


async def test_another_managers_value_is_a_conflict_that_names_field_and_manager(things: Rest):
    await things.apply(f"{THINGS}/t", a_thing(size=1), "one")
    with pytest.raises(Refused) as refused:
        await things.apply(f"{THINGS}/t", a_thing(size=2), "two")
    assert refused.value.status == 409
    assert refused.value.message == 'Apply failed with 1 conflict: conflict with "one": .spec.size'
    assert refused.value.body["details"]["causes"][0]["field"] == ".spec.size"


async def test_force_takes_the_field_over_and_the_loser_no_longer_removes_it(things: Rest):
    await things.apply(f"{THINGS}/t", a_thing(size=1, uuids=["GPU-1"]), "one")
    await things.apply(f"{THINGS}/t", a_thing(size=2), "two", force="true")
    applied = await things.apply(f"{THINGS}/t", {**a_thing(), "spec": {"uuids": ["GPU-1"]}}, "one")
    assert applied["spec"]["size"] == 2


async def test_equal_values_are_owned_together_and_stay_until_the_last_owner_goes(things: Rest):
    await things.apply(f"{THINGS}/t", a_thing(mode="B", uuids=["GPU-1"]), "one")
    await things.apply(f"{THINGS}/t", a_thing(uuids=["GPU-1"]), "two")
    kept = await things.apply(f"{THINGS}/t", a_thing(), "one")
    assert kept["spec"]["uuids"] == ["GPU-1"]
    gone = await things.apply(f"{THINGS}/t", a_thing(), "two")
    assert "uuids" not in gone["spec"]


async def test_an_item_goes_with_its_owner_whoever_changed_a_field_of_it(things: Rest):
    await things.create(THINGS, a_thing())
    await things.apply(STATUS, a_status(**conditions(("A", "True"))["status"]), "agent")
    changes = [
        {"op": "add", "path": "/status/conditions/0/reason", "value": "x"},
        {"op": "add", "path": "/status/conditions/-", "value": {"type": "B", "status": "True"}},
    ]
    await things.json_patch(STATUS, changes, fieldManager="operator")
    left = await things.apply(STATUS, a_status(state="x"), "agent")
    assert left["status"]["conditions"] == [{"type": "B", "status": "True"}]


async def test_a_field_that_the_schema_does_not_know_cannot_be_applied(things: Rest):
    with pytest.raises(Refused) as refused:
        await things.apply(f"{THINGS}/t", a_thing(bogus=1), "me", fieldValidation="Ignore")
    assert refused.value.status == 500
    assert ".spec.bogus: field not declared in schema" in refused.value.message


async def test_a_value_that_a_plain_write_changed_belongs_to_its_writer(things: Rest):
    await things.apply(f"{THINGS}/t", a_thing(size=1), "one")
    await things.merge(f"{THINGS}/t", {"spec": {"size": 5}}, fieldManager="user")
    with pytest.raises(Refused) as refused:
        await things.apply(f"{THINGS}/t", a_thing(size=1), "one")
    assert 'conflict with "user" using example.dev/v1' in refused.value.message


async def test_apply_to_status_leaves_the_spec_alone_and_the_other_way_round(things: Rest):
    await things.create(THINGS, a_thing())
    wanted = {**a_thing(size=9), "status": {"state": "x"}}
    status = await things.apply(STATUS, wanted, "agent")
    assert (status["spec"]["size"], status["status"]["state"]) == (1, "x")
    wanted["status"] = {"state": "y"}
    plain = await things.apply(f"{THINGS}/t", wanted, "user", force="true")
    assert (plain["spec"]["size"], plain["status"]["state"]) == (9, "x")


async def test_apply_to_the_status_of_nothing_is_404(things: Rest):
    with pytest.raises(Refused) as refused:
        await things.apply(STATUS, a_status(state="x"), "agent")
    assert refused.value.status == 404


async def test_apply_without_a_field_manager_is_refused(things: Rest):
    with pytest.raises(Refused) as refused:
        await things.ask("PATCH", f"{THINGS}/t", a_thing(), media="application/apply-patch+yaml")
    assert refused.value.status == 422
    assert "fieldManager: Required value" in refused.value.message


async def test_managed_fields_say_who_applied_what(things: Rest):
    applied = await things.apply(f"{THINGS}/t", a_thing(requests=[{"name": "a"}]), "me")
    (entry,) = applied["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("me", "Apply")
    keyed = entry["fieldsV1"]["f:spec"]["f:requests"]['k:{"name":"a"}']
    assert keyed == {".": {}, "f:name": {}}


async def test_an_object_whose_owners_were_reset_belongs_to_whoever_was_before(things: Rest):
    await things.apply(f"{THINGS}/t", a_thing(size=1), "one")
    await things.merge(f"{THINGS}/t", {"metadata": {"managedFields": [{}]}})
    with pytest.raises(Refused) as refused:
        await things.apply(f"{THINGS}/t", a_thing(size=2), "two")
    assert 'conflict with "before-first-apply" using example.dev/v1' in refused.value.message


async def test_apply_with_a_stale_resource_version_is_a_conflict(things: Rest):
    made = await things.create(THINGS, a_thing())
    await things.merge(f"{THINGS}/t", {"spec": {"mode": "B"}})
    wanted = a_thing()
    wanted["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    with pytest.raises(Refused) as refused:
        await things.apply(f"{THINGS}/t", wanted, "me")
    assert refused.value.status == 409


async def test_labels_and_containers_of_built_in_kinds_merge_by_key(rest: Rest):
    path = "/api/v1/namespaces/default/pods/p"
    pod = {"apiVersion": "v1", "kind": "Pod", **a_pod()}
    pod["metadata"]["labels"] = {"a": "1"}
    await rest.apply(path, pod, "one")
    extra = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"b": "2"}}}
    both = await rest.apply(path, extra, "two")
    assert both["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert len(both["spec"]["containers"]) == 1
