from __future__ import annotations

from typing import Any

import pytest

from rest import CONFIGMAPS, NODES, THINGS, Json, Refused, Rest, a_thing

NAMESPACES = "/api/v1/namespaces"


def owned(name: str, *owners: Json, **thing: Any) -> Json:
    body = a_thing(name, **thing)
    body["metadata"]["ownerReferences"] = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for owner in owners
    ]
    return body


async def test_an_object_with_a_finalizer_goes_when_the_last_one_does(things: Rest):
    thing = a_thing()
    thing["metadata"]["finalizers"] = ["a.dev/a", "a.dev/b"]
    await things.create(THINGS, thing)
    deleting = await things.delete(f"{THINGS}/t")
    assert deleting["metadata"]["deletionTimestamp"]
    assert deleting["metadata"]["generation"] == 2
    await things.merge(f"{THINGS}/t", {"metadata": {"finalizers": ["a.dev/a"]}})
    assert await things.names(THINGS) == ["t"]
    await things.merge(f"{THINGS}/t", {"metadata": {"finalizers": []}})
    assert await things.names(THINGS) == []
    assert [event.type for event in things.server.history()][-2:] == ["MODIFIED", "DELETED"]


async def test_no_finalizer_is_added_to_an_object_that_is_being_deleted(things: Rest):
    thing = a_thing()
    thing["metadata"]["finalizers"] = ["a.dev/a"]
    await things.create(THINGS, thing)
    await things.delete(f"{THINGS}/t")
    with pytest.raises(Refused) as refused:
        await things.merge(f"{THINGS}/t", {"metadata": {"finalizers": ["a.dev/a", "a.dev/b"]}})
    assert refused.value.status == 422
    assert "no new finalizers can be added" in refused.value.message


@pytest.mark.parametrize("preconditions", [{"uid": "other"}, {"resourceVersion": "1"}])
async def test_a_deletion_whose_precondition_fails_is_a_conflict(things: Rest, preconditions: Json):
    await things.create(THINGS, a_thing())
    with pytest.raises(Refused) as refused:
        await things.delete(f"{THINGS}/t", {"preconditions": preconditions})
    assert refused.value.status == 409
    assert await things.names(THINGS) == ["t"]


async def test_a_deletion_answers_with_what_went(things: Rest):
    made = await things.create(THINGS, a_thing())
    answer = await things.delete(f"{THINGS}/t")
    assert answer["status"] == "Success"
    assert answer["details"]["uid"] == made["metadata"]["uid"]


async def test_a_collection_is_deleted_by_its_selector(things: Rest):
    for name, label in (("a", "1"), ("b", "2"), ("c", "1")):
        thing = a_thing(name)
        thing["metadata"]["labels"] = {"x": label}
        await things.create(THINGS, thing)
    await things.delete(THINGS, labelSelector="x=1")
    assert await things.names(THINGS) == ["b"]


async def test_what_a_deleted_object_owned_goes_too_over_generations(things: Rest):
    node = await things.create(NODES, {"metadata": {"name": "n"}})
    first = await things.create(THINGS, owned("a", node))
    await things.create(THINGS, owned("b", first))
    await things.delete(f"{NODES}/n")
    await things.gone(f"{THINGS}/b")
    assert await things.names(THINGS) == []


async def test_an_object_with_another_owner_left_stays_and_forgets_the_lost_one(things: Rest):
    first = await things.create(THINGS, a_thing("a"))
    second = await things.create(THINGS, a_thing("b"))
    child = await things.create(THINGS, owned("c", first, second))
    async with things.watch(THINGS, resourceVersion=child["metadata"]["resourceVersion"]) as watch:
        await things.delete(f"{THINGS}/a")
        assert await watch.take(2) == [("DELETED", "a"), ("MODIFIED", "c")]
    (left,) = (await things.get(f"{THINGS}/c"))["metadata"]["ownerReferences"]
    assert left["name"] == "b"


async def test_an_object_whose_owner_never_existed_is_collected(things: Rest):
    ghost = {**a_thing("ghost"), "metadata": {"name": "ghost", "uid": "none"}}
    await things.create(THINGS, owned("a", ghost))
    await things.gone(f"{THINGS}/a")


async def test_an_owner_of_the_same_name_but_another_uid_is_another_owner(things: Rest):
    first = await things.create(THINGS, a_thing("a"))
    await things.delete(f"{THINGS}/a")
    await things.create(THINGS, a_thing("a"))
    await things.create(THINGS, owned("b", first))
    await things.gone(f"{THINGS}/b")
    assert await things.names(THINGS) == ["a"]


async def test_orphaned_objects_stay_without_their_owner(things: Rest):
    owner = await things.create(THINGS, a_thing("a"))
    await things.create(THINGS, owned("b", owner))
    await things.delete(f"{THINGS}/a", {"propagationPolicy": "Orphan"})
    await things.gone(f"{THINGS}/a")
    child = await things.get(f"{THINGS}/b")
    assert "ownerReferences" not in child["metadata"]


async def test_a_foreground_deletion_waits_for_what_is_owned(things: Rest):
    owner = await things.create(THINGS, a_thing("a"))
    child = owned("b", owner)
    child["metadata"]["finalizers"] = ["a.dev/a"]
    await things.create(THINGS, child)
    await things.delete(f"{THINGS}/a", {"propagationPolicy": "Foreground"})
    async with things.watch(THINGS, fieldSelector="metadata.name=b") as watch:
        while "deletionTimestamp" not in (await watch.next())["object"]["metadata"]:
            pass
    assert await things.names(THINGS) == ["a", "b"]
    await things.merge(f"{THINGS}/b", {"metadata": {"finalizers": None}})
    await things.gone(f"{THINGS}/a")


async def test_a_namespace_goes_when_it_is_empty_and_takes_nothing_new_meanwhile(things: Rest):
    await things.create(NAMESPACES, {"metadata": {"name": "x"}})
    within = "/apis/example.dev/v1/namespaces/x/things"
    thing = a_thing()
    thing["metadata"]["finalizers"] = ["a.dev/a"]
    await things.create(within, thing)
    deleting = await things.delete(f"{NAMESPACES}/x")
    assert deleting["status"]["phase"] == "Terminating"
    with pytest.raises(Refused) as refused:
        await things.create(within, a_thing("u"))
    assert refused.value.status == 403
    await things.merge(f"{within}/t", {"metadata": {"finalizers": None}})
    await things.gone(f"{NAMESPACES}/x")


async def test_a_namespaces_name_stands_in_its_labels(things: Rest):
    made = await things.create(NAMESPACES, {"metadata": {"name": "x"}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "x"}
    assert await things.names(CONFIGMAPS) == []
