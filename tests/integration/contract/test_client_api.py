"""The client's verbs, and what the API server promises to those who rely on them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest

from vgpu_api.resources import CONFIG_MAPS, EVENTS, PODS, VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Gone,
    Invalid,
    NotFound,
    PatchDoesNotFit,
)
from vgpu_client.event import create_event


def a_config_map(namespace: str, name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name, **more}, "data": {"key": "1"}}


def a_pod(namespace: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": name, **more},
        "spec": {"containers": [{"name": "main", "image": "none.invalid/none"}]},
    }


async def test_create_returns_the_object_with_uid_and_version(api: Api, namespace: str) -> None:
    made = await api.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    assert made["metadata"]["uid"]
    assert made == await api.get(CONFIG_MAPS, "a", namespace=namespace)


async def test_a_name_can_be_taken_once(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    with pytest.raises(AlreadyExists):
        await api.create(CONFIG_MAPS, a_config_map(namespace, "a"))


async def test_what_does_not_exist_is_not_found(api: Api, namespace: str) -> None:
    with pytest.raises(NotFound) as caught:
        await api.get(CONFIG_MAPS, "nothing", namespace=namespace)
    assert caught.value.reason == "NotFound"


async def test_nothing_is_created_in_a_namespace_that_does_not_exist(api: Api) -> None:
    with pytest.raises(NotFound):
        await api.create(CONFIG_MAPS, a_config_map("no-such-namespace", "a"))


async def test_a_replacement_of_an_old_version_conflicts(api: Api, namespace: str) -> None:
    old = await api.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    new = await api.replace(CONFIG_MAPS, {**old, "data": {"key": "2"}})
    assert new["data"] == {"key": "2"}
    with pytest.raises(Conflict):
        await api.replace(CONFIG_MAPS, {**old, "data": {"key": "3"}})


async def test_a_json_patch_whose_test_fails_changes_nothing(api: Api, namespace: str) -> None:
    old = await api.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    version = {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": old["metadata"]["resourceVersion"],
    }
    change = [version, {"op": "replace", "path": "/data/key", "value": "2"}]
    new = await api.json_patch(CONFIG_MAPS, "a", change, namespace=namespace)
    assert new["data"] == {"key": "2"}
    with pytest.raises(PatchDoesNotFit):
        await api.json_patch(CONFIG_MAPS, "a", change, namespace=namespace)
    assert await api.get(CONFIG_MAPS, "a", namespace=namespace) == new


async def test_a_json_patch_on_a_missing_path_does_not_fit(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    change = [{"op": "remove", "path": "/data/nothing"}]
    with pytest.raises(PatchDoesNotFit):
        await api.json_patch(CONFIG_MAPS, "a", change, namespace=namespace)


async def test_a_merge_patch_merges_and_removes(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    changes = {"data": {"key": None, "other": "2"}}
    new = await api.merge_patch(CONFIG_MAPS, "a", changes, namespace=namespace)
    assert new["data"] == {"other": "2"}


async def test_an_object_that_breaks_the_rules_is_invalid(api: Api, namespace: str) -> None:
    with pytest.raises(Invalid) as caught:
        await api.create(CONFIG_MAPS, a_config_map(namespace, "UPPER"))
    assert caught.value.details["causes"][0]["field"] == "metadata.name"


async def test_pages_make_one_consistent_list(api: Api, namespace: str) -> None:
    for number in range(7):
        await api.create(CONFIG_MAPS, a_config_map(namespace, f"a{number}", labels={"of": "us"}))
    listing = await api.list(CONFIG_MAPS, namespace=namespace, label_selector="of=us", page_size=3)
    assert [item["metadata"]["name"] for item in listing.items] == [f"a{n}" for n in range(7)]
    assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("v1", "ConfigMap")}
    newest = max(int(item["metadata"]["resourceVersion"]) for item in listing.items)
    assert int(listing.resource_version) >= newest


async def test_label_selectors_select(api: Api, namespace: str) -> None:
    for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
        await api.create(CONFIG_MAPS, a_config_map(namespace, name, labels={"color": color}))
    for selector, names in (
        ("color=red", ["a", "c"]),
        ("color!=red,color", ["b"]),
        ("color in (blue)", ["b"]),
        ("!color", []),
    ):
        found = await api.list(CONFIG_MAPS, namespace=namespace, label_selector=selector)
        selected = [item["metadata"]["name"] for item in found.items]
        assert [name for name in selected if name in "abc"] == names


async def test_a_watch_tells_everything_after_its_version(api: Api, namespace: str) -> None:
    start = (await api.list(CONFIG_MAPS, namespace=namespace)).resource_version
    await api.create(CONFIG_MAPS, a_config_map(namespace, "a", labels={"of": "us"}))
    await api.merge_patch(CONFIG_MAPS, "a", {"data": {"key": "2"}}, namespace=namespace)
    await api.delete(CONFIG_MAPS, "a", namespace=namespace)
    seen = []
    events = api.watch(
        CONFIG_MAPS, resource_version=start, namespace=namespace, label_selector="of=us"
    )
    async with aclosing(events):
        async for event in events:
            metadata = event["object"]["metadata"]
            if event["type"] != "BOOKMARK":
                seen.append((event["type"], metadata["name"], int(metadata["resourceVersion"])))
            if event["type"] == "DELETED":
                break
    assert [(kind, name) for kind, name, _ in seen] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]
    versions = [version for _, _, version in seen]
    assert versions == sorted(set(versions))


async def test_a_watch_ends_properly_when_its_time_is_over(api: Api, namespace: str) -> None:
    start = (await api.list(CONFIG_MAPS, namespace=namespace)).resource_version
    async with asyncio.timeout(20):
        async for event in api.watch(
            CONFIG_MAPS, resource_version=start, namespace=namespace, timeout_s=1
        ):
            assert event["type"] == "BOOKMARK" or event["object"]["metadata"]["name"]


async def test_a_watch_that_selects_nothing_hears_how_far_history_is(
    api: Api, namespace: str
) -> None:
    start = (await api.list(CONFIG_MAPS, namespace=namespace)).resource_version

    async def first_bookmark() -> int:
        # Kubernetes sends a bookmark once a minute, and two seconds before a stream ends.
        events = api.watch(
            CONFIG_MAPS, resource_version=start, label_selector="no=match", timeout_s=6
        )
        async with aclosing(events):
            async for event in events:
                if event["type"] == "BOOKMARK":
                    return int(event["object"]["metadata"]["resourceVersion"])
        raise AssertionError("none")

    listening = asyncio.ensure_future(first_bookmark())
    number = 0
    while not listening.done():  # bookmarks show what happens while the stream is open
        number += 1
        await api.create(CONFIG_MAPS, a_config_map(namespace, f"a{number}"))
        await asyncio.wait({listening}, timeout=0.2)
    assert await listening > int(start)


async def test_a_version_from_before_all_history_is_gone(api: Api, namespace: str) -> None:
    await api.list(VGPU_CLAIMS, namespace=namespace)
    with pytest.raises(Gone):
        async for _ in api.watch(VGPU_CLAIMS, resource_version="1", timeout_s=2):
            pass


async def test_a_delete_can_be_bound_to_a_uid(api: Api, namespace: str) -> None:
    made = await api.create(CONFIG_MAPS, a_config_map(namespace, "a"))
    with pytest.raises(Conflict):
        await api.delete(CONFIG_MAPS, "a", namespace=namespace, uid="another")
    await api.delete(CONFIG_MAPS, "a", namespace=namespace, uid=made["metadata"]["uid"])
    with pytest.raises(NotFound):
        await api.get(CONFIG_MAPS, "a", namespace=namespace)


async def test_a_finalizer_holds_a_deletion_up(api: Api, namespace: str) -> None:
    await api.create(CONFIG_MAPS, a_config_map(namespace, "a", finalizers=["vgpu.dev/in-use"]))
    await api.delete(CONFIG_MAPS, "a", namespace=namespace)
    held = await api.get(CONFIG_MAPS, "a", namespace=namespace)
    assert held["metadata"]["deletionTimestamp"]
    with pytest.raises(Invalid):  # finalizers cannot be added to an object that is being deleted
        await api.merge_patch(
            CONFIG_MAPS,
            "a",
            {"metadata": {"finalizers": ["vgpu.dev/in-use", "vgpu.dev/more"]}},
            namespace=namespace,
        )
    await api.merge_patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}}, namespace=namespace)
    with pytest.raises(NotFound):
        await api.get(CONFIG_MAPS, "a", namespace=namespace)


async def test_a_binding_carries_annotations_to_the_pod(api: Api, namespace: str) -> None:
    pod = await api.create(PODS, a_pod(namespace, "p", annotations={"mine": "1"}))
    await api.bind_pod(
        namespace=namespace,
        name="p",
        uid=pod["metadata"]["uid"],
        node="node-1",
        annotations={"hami.io/vgpu-node": "node-1"},
    )
    bound = await api.get(PODS, "p", namespace=namespace)
    assert bound["spec"]["nodeName"] == "node-1"
    assert bound["metadata"]["annotations"] == {"mine": "1", "hami.io/vgpu-node": "node-1"}
    assert [c["status"] for c in bound["status"]["conditions"] if c["type"] == "PodScheduled"] == [
        "True"
    ]


async def test_a_pod_is_bound_once_and_under_its_own_uid(api: Api, namespace: str) -> None:
    pod = await api.create(PODS, a_pod(namespace, "p"))
    binding: dict[str, Any] = {"namespace": namespace, "node": "node-1", "annotations": {}}
    with pytest.raises(NotFound):
        await api.bind_pod(name="q", uid=pod["metadata"]["uid"], **binding)
    with pytest.raises(Conflict):
        await api.bind_pod(name="p", uid="another", **binding)
    await api.bind_pod(name="p", uid=pod["metadata"]["uid"], **binding)
    with pytest.raises(Conflict):
        await api.bind_pod(name="p", uid=pod["metadata"]["uid"], **binding)


async def test_an_unknown_field_selector_is_refused(api: Api, namespace: str) -> None:
    with pytest.raises(ApiError) as caught:
        await api.list(VGPU_CLAIMS, namespace=namespace, field_selector="spec.nothing=1")
    assert caught.value.status == 400


async def test_pods_are_selected_by_node(api: Api, namespace: str) -> None:
    for name in ("p", "q"):
        await api.create(PODS, a_pod(namespace, name))
    pod = await api.get(PODS, "p", namespace=namespace)
    await api.bind_pod(
        namespace=namespace, name="p", uid=pod["metadata"]["uid"], node="n-7", annotations={}
    )
    found = await api.list(PODS, namespace=namespace, field_selector="spec.nodeName=n-7")
    assert [item["metadata"]["name"] for item in found.items] == ["p"]


async def test_events_are_found_by_the_object_they_tell_of(api: Api, namespace: str) -> None:
    claim = {"spec": {"requests": [{"count": 1}]}}
    claim = await api.create(
        VGPU_CLAIMS,
        {
            "apiVersion": VGPU_CLAIMS.api_version,
            "kind": VGPU_CLAIMS.kind,
            "metadata": {"namespace": namespace, "name": "c"},
            **claim,
        },
    )
    await create_event(
        api,
        claim,
        type="Warning",
        reason="NoRoom",
        message="x" * 5000,
        component="vgpu-operator",
        now=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    uid = claim["metadata"]["uid"]
    found = await api.list(EVENTS, namespace=namespace, field_selector=f"involvedObject.uid={uid}")
    assert [(e["reason"], e["firstTimestamp"]) for e in found.items] == [
        ("NoRoom", "2026-01-02T03:04:05Z")
    ]
