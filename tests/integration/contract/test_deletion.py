from __future__ import annotations

import pytest

from rest import NAMESPACES, NODES, SECRETS, THINGS, Json, Refused, Rest, a_thing


def a_secret(name: str, *owners: Json, uid: str = "") -> Json:
    """Return a Secret that belongs to owners.

    The garbage collector knows this kind from the start.
    """
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
        for owner in owners
    ]
    metadata = {"name": name, "ownerReferences": references, **({"uid": uid} if uid else {})}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


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


async def test_what_a_deleted_object_owned_goes_too_over_generations(rest: Rest):
    node = await rest.create(NODES, {"metadata": {"name": rest.namespace}})
    first = await rest.create(SECRETS, a_secret("a", node))
    await rest.create(SECRETS, a_secret("b", first))
    await rest.delete(f"{NODES}/{rest.namespace}")
    await rest.gone(f"{SECRETS}/b")
    assert await rest.names(SECRETS) == []


async def test_an_object_with_another_owner_left_stays_and_forgets_the_lost_one(rest: Rest):
    first = await rest.create(SECRETS, a_secret("a"))
    second = await rest.create(SECRETS, a_secret("b"))
    child = await rest.create(SECRETS, a_secret("c", first, second))
    async with rest.watch(SECRETS, resourceVersion=child["metadata"]["resourceVersion"]) as watch:
        await rest.delete(f"{SECRETS}/a")
        assert await watch.take(2) == [("DELETED", "a"), ("MODIFIED", "c")]
    (left,) = (await rest.get(f"{SECRETS}/c"))["metadata"]["ownerReferences"]
    assert left["name"] == "b"


async def test_an_object_whose_owner_never_existed_is_collected(rest: Rest):
    await rest.create(SECRETS, a_secret("a", a_secret("ghost", uid="none")))
    await rest.gone(f"{SECRETS}/a")


async def test_an_owner_of_the_same_name_but_another_uid_is_another_owner(rest: Rest):
    first = await rest.create(SECRETS, a_secret("a"))
    await rest.delete(f"{SECRETS}/a")
    await rest.create(SECRETS, a_secret("a"))
    await rest.create(SECRETS, a_secret("b", first))
    await rest.gone(f"{SECRETS}/b")
    assert await rest.names(SECRETS) == ["a"]


async def test_orphaned_objects_stay_without_their_owner(rest: Rest):
    owner = await rest.create(SECRETS, a_secret("a"))
    await rest.create(SECRETS, a_secret("b", owner))
    await rest.delete(f"{SECRETS}/a", {"propagationPolicy": "Orphan"})
    await rest.gone(f"{SECRETS}/a")
    child = await rest.get(f"{SECRETS}/b")
    assert "ownerReferences" not in child["metadata"]


async def test_a_foreground_deletion_waits_for_what_is_a_secret(rest: Rest):
    owner = await rest.create(SECRETS, a_secret("a"))
    child = a_secret("b", owner)
    child["metadata"]["finalizers"] = ["a.dev/a"]
    await rest.create(SECRETS, child)
    await rest.delete(f"{SECRETS}/a", {"propagationPolicy": "Foreground"})
    async with rest.watch(SECRETS, fieldSelector="metadata.name=b") as watch:
        while "deletionTimestamp" not in (await watch.next())["object"]["metadata"]:
            pass
    assert await rest.names(SECRETS) == ["a", "b"]
    await rest.merge(f"{SECRETS}/b", {"metadata": {"finalizers": None}})
    await rest.gone(f"{SECRETS}/a")


async def test_a_namespace_that_is_deleted_takes_nothing_new_and_goes(things: Rest):
    itself = f"{NAMESPACES}/{things.namespace}"
    assert (await things.get(itself))["metadata"]["labels"] == {
        "kubernetes.io/metadata.name": things.namespace
    }
    thing = a_thing()
    thing["metadata"]["finalizers"] = ["a.dev/a"]
    await things.create(THINGS, thing)
    deleting = await things.delete(itself)
    assert deleting["status"]["phase"] == "Terminating"
    with pytest.raises(Refused) as refused:
        await things.create(THINGS, a_thing("u"))
    assert refused.value.status == 403
    await things.merge(f"{THINGS}/t", {"metadata": {"finalizers": None}})
    await things.gone(itself)
