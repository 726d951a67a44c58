from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rest import (
    CONFIGMAPS,
    CRDS,
    NODES,
    PODS,
    SECRETS,
    THINGS,
    Json,
    Refused,
    Rest,
    a_thing,
    thing_definition,
)

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


async def refusal(asked: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        await asked
    return refused.value


def version(obj: Json) -> int:
    return int(obj["metadata"]["resourceVersion"])


async def test_a_new_object_gets_uid_time_and_the_next_resource_version(rest: Rest):
    first = await rest.create(CONFIGMAPS, {"metadata": {"name": "a"}})
    second = await rest.create(CONFIGMAPS, {"metadata": {"name": "b"}})
    assert version(second) > version(first)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert first["metadata"]["creationTimestamp"].endswith("Z")
    assert (first["kind"], first["metadata"]["namespace"]) == ("ConfigMap", rest.namespace)


async def test_generate_name_makes_distinct_names(rest: Rest):
    body = {"metadata": {"generateName": "x-"}}
    made = {(await rest.create(CONFIGMAPS, body))["metadata"]["name"] for _ in range(5)}
    assert len(made) == 5
    assert all(name.startswith("x-") and len(name) == 7 for name in made)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (CONFIGMAPS, {"metadata": {}}, 422, "name or generateName is required"),
        (CONFIGMAPS, {"metadata": {"name": "A_b"}}, 422, "lowercase RFC 1123"),
        (CONFIGMAPS, {"metadata": {"name": "a", "namespace": "x"}}, 400, "does not match"),
        (
            CONFIGMAPS,
            {"kind": "Pod", "metadata": {"name": "a"}},
            400,
            "cannot be handled as a ConfigMap",
        ),
        (CONFIGMAPS, {"metadata": {"name": "a", "labels": {"k": 1}}}, 400, "cannot unmarshal"),
        (CONFIGMAPS, {"metadata": {"name": "a", "labels": {"k": "-"}}}, 422, "valid label"),
        (CONFIGMAPS, b"{", 400, ""),
        (CONFIGMAPS, [], 400, ""),
        ("/api/v1/namespaces/none/pods", {"metadata": {"name": "a"}}, 404, 'namespaces "none"'),
        ("/apis/none.dev/v1/things", {}, 404, "404 page not found"),
        (PODS, {"metadata": {"name": "a"}}, 422, "spec.containers: Required value"),
    ],
)
async def test_a_wrong_create_is_refused(rest: Rest, path: str, body: Any, status: int, says: str):
    refused = await refusal(rest.create(path, body))
    assert refused.status == status
    assert says in refused.message


async def test_an_absent_object_is_404_and_named(things: Rest):
    refused = await refusal(things.get(f"{THINGS}/x"))
    assert refused.message == 'things.example.dev "x" not found'
    assert refused.body["details"] == {"name": "x", "kind": "things", "group": "example.dev"}


@pytest.mark.parametrize("path", [THINGS, LEASES])
async def test_custom_kinds_and_leases_are_updated_with_their_version_only(things: Rest, path: str):
    body = a_thing() if path == THINGS else {"metadata": {"name": "t"}}
    await things.create(path, body)
    refused = await refusal(things.update(f"{path}/t", body))
    assert refused.status == 422
    assert "metadata.resourceVersion" in refused.message


async def test_a_lease_is_created_by_its_first_update(rest: Rest):
    made = await rest.update(f"{LEASES}/l", {"metadata": {"name": "l"}})
    assert made["metadata"]["uid"]


async def test_a_custom_object_of_another_kind_or_version_is_refused(things: Rest):
    refused = await refusal(things.create(THINGS, {**a_thing(), "kind": "Foo"}))
    assert (refused.status, refused.body["details"]["causes"][0]["field"]) == (422, "kind")
    refused = await refusal(things.create(THINGS, {**a_thing(), "apiVersion": "example.dev/v9"}))
    assert "does not match the expected API version" in refused.message
    refused = await refusal(things.create(THINGS, {"metadata": {"name": "t"}}))
    assert "Object 'Kind' is missing" in refused.message


async def test_a_merge_patch_with_a_stale_version_is_409(things: Rest):
    made = await things.create(THINGS, a_thing())
    await things.merge(f"{THINGS}/t", {"spec": {"size": 2}})
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    assert (await refusal(things.merge(f"{THINGS}/t", patch))).status == 409


async def test_a_write_with_another_uid_is_a_conflict(things: Rest):
    await things.create(THINGS, a_thing())
    made = await things.get(f"{THINGS}/t")
    made["metadata"]["uid"] = "other"
    refused = await refusal(things.update(f"{THINGS}/t", made))
    assert refused.status == 409
    assert "UID in precondition: other" in refused.message
    refused = await refusal(things.merge(f"{THINGS}/t", {"metadata": {"uid": "other"}}))
    assert refused.status == 422


async def test_a_write_that_changes_nothing_makes_no_version_and_no_event(things: Rest):
    made = await things.create(THINGS, a_thing())
    same = await things.merge(f"{THINGS}/t", {"spec": {"size": 1}})
    assert version(same) == version(made)
    async with things.watch(THINGS, resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        await things.delete(f"{THINGS}/t")
        assert await watch.take(1) == [("DELETED", "t")]


async def test_a_status_write_drops_spec_and_metadata(things: Rest):
    await things.create(THINGS, a_thing())
    written = await things.merge(
        f"{THINGS}/t/status",
        {
            "metadata": {"labels": {"a": "1"}, "finalizers": ["a.dev/b"]},
            "spec": {"size": 9},
            "status": {"state": "x"},
        },
    )
    assert written["status"] == {"state": "x"}
    assert written["spec"]["size"] == 1
    assert not {"labels", "finalizers"} & written["metadata"].keys()


async def test_a_custom_object_is_defaulted_and_validated(things: Rest):
    made = await things.create(THINGS, a_thing())
    assert made["spec"]["mode"] == "A"
    refused = await refusal(things.create(THINGS, a_thing("u", size=99, mode="Z")))
    assert refused.status == 422
    fields = {cause["field"] for cause in refused.body["details"]["causes"]}
    assert fields == {"spec.mode", "spec.size"}
    assert refused.message.startswith('Thing.example.dev "u" is invalid: [spec.')


async def test_unknown_fields_are_pruned_with_a_warning_or_refused_when_strict(things: Rest):
    made = await things.create(THINGS, a_thing(bogus=1))
    assert "bogus" not in made["spec"]
    assert things.warnings == ['299 - "unknown field \\"spec.bogus\\""']
    await things.create(THINGS, a_thing("u", bogus=1), fieldValidation="Ignore")
    assert things.warnings == []
    refused = await refusal(things.create(THINGS, a_thing("v", bogus=1), fieldValidation="Strict"))
    assert refused.status == 400
    assert 'strict decoding error: unknown field "spec.bogus"' in refused.message


async def test_a_dry_run_answers_and_stores_nothing(things: Rest):
    made = await things.create(THINGS, a_thing(), dryRun="All")
    assert made["spec"]["mode"] == "A"
    assert await things.names(THINGS) == []


async def test_a_strategic_patch_is_for_built_in_kinds_only(things: Rest):
    await things.create(THINGS, a_thing())
    refused = await refusal(things.strategic(f"{THINGS}/t", {"spec": {"size": 2}}))
    assert refused.status == 415


async def served_for_ever(rest: Rest, path: str) -> None:
    """Read until the kind is no longer served; the server learns of its end through a watch."""
    async with asyncio.timeout(20):
        while True:
            await rest.get(path)


async def test_a_deleted_definition_takes_its_objects_and_its_paths_along(rest: Rest):
    gadgets = THINGS.replace("things", "gadgets")
    await rest.create(CRDS, thing_definition("gadget"))
    await rest.until_served(gadgets)
    made = await rest.create(gadgets, {**a_thing(), "kind": "Gadget"})
    version = made["metadata"]["resourceVersion"]
    async with rest.watch(gadgets, resourceVersion=version) as watch:
        await rest.delete(f"{CRDS}/gadgets.example.dev")
        assert await watch.take(1) == [("DELETED", "t")]
    await rest.gone(f"{CRDS}/gadgets.example.dev")
    assert (await refusal(served_for_ever(rest, gadgets))).status == 404


async def test_a_list_is_ordered_selected_and_says_its_kind(things: Rest):
    for name in ("c", "a", "b"):
        await things.create(THINGS, a_thing(name))
    await things.merge(f"{THINGS}/b", {"metadata": {"labels": {"x": "1"}}})
    await things.merge(f"{THINGS}/c/status", {"status": {"node": "n1"}})
    listed = await things.get(THINGS)
    assert (listed["kind"], listed["apiVersion"]) == ("ThingList", "example.dev/v1")
    assert await things.names(THINGS) == ["a", "b", "c"]
    assert await things.names(THINGS, labelSelector="x=1") == ["b"]
    assert await things.names(THINGS, fieldSelector="status.node=n1") == ["c"]
    everywhere, nowhere = "/apis/example.dev/v1/things", f"metadata.namespace={things.namespace}"
    found = await things.names(everywhere, fieldSelector=f"status.node=,{nowhere}")
    assert found == ["a", "b"]


async def test_a_chunked_list_is_one_snapshot(rest: Rest):
    for name in "abcde":
        await rest.create(SECRETS, {"metadata": {"name": name}})
    first = await rest.get(SECRETS, limit="2")
    await rest.delete(f"{SECRETS}/d")
    await rest.create(SECRETS, {"metadata": {"name": "f"}})
    second = await rest.get(SECRETS, limit="2", **{"continue": first["metadata"]["continue"]})
    third = await rest.get(SECRETS, limit="2", **{"continue": second["metadata"]["continue"]})
    chunks = [
        [item["metadata"]["name"] for item in part["items"]] for part in (first, second, third)
    ]
    assert chunks == [["a", "b"], ["c", "d"], ["e"]]
    assert first["metadata"]["remainingItemCount"] == 3
    assert "continue" not in third["metadata"]
    assert version(first) == version(second) == version(third)


async def test_a_version_from_the_future_is_504(rest: Rest):
    refused = await refusal(rest.get(PODS, resourceVersion="999999"))
    assert refused.status == 504
    assert "Too large resource version" in refused.message


async def test_concurrent_writers_of_one_object_lose_no_update(rest: Rest):
    await rest.create(CONFIGMAPS, {"metadata": {"name": "a"}, "data": {}})

    async def add(key: str) -> None:
        while True:
            current = await rest.get(f"{CONFIGMAPS}/a")
            current.setdefault("data", {})[key] = "1"
            try:
                await rest.update(f"{CONFIGMAPS}/a", current)
            except Refused as refused:
                if refused.status != 409:
                    raise
            else:
                return

    await asyncio.gather(*(add(f"k{at}") for at in range(20)))
    assert len((await rest.get(f"{CONFIGMAPS}/a"))["data"]) == 20


async def test_health_and_version_are_answered(rest: Rest):
    async with rest.session.get(rest.url("/readyz")) as answer:
        assert await answer.text() == "ok"
    assert (await rest.get("/version"))["major"] == "1"


async def test_a_node_keeps_the_status_it_was_created_with_in_canonical_amounts(rest: Rest):
    status = {"capacity": {"memory": "16384Mi", "nvidia.com/gpu": "1000"}}
    node = await rest.create(NODES, {"metadata": {"name": "n"}, "status": status})
    assert node["status"]["capacity"] == {"memory": "16Gi", "nvidia.com/gpu": "1k"}
    patch = {"status": {"allocatable": {"nvidia.com/gpu": 4000}}}
    written = await rest.strategic(f"{NODES}/n/status", patch)
    assert written["status"]["allocatable"]["nvidia.com/gpu"] == "4k"
