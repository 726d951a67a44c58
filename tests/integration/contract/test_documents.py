from __future__ import annotations

from rest import Rest

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


async def test_both_forms_of_discovery_name_the_same_kinds(things: Rest):
    listed = await things.get("/apis/example.dev/v1")
    names = [entry["name"] for entry in listed["resources"]]
    assert names == ["things", "things/status"]
    assert listed["resources"][0]["shortNames"] == ["th"]
    grouped = await things.get("/apis", accept=AGGREGATED)
    (group,) = [item for item in grouped["items"] if item["metadata"]["name"] == "example.dev"]
    (resource,) = group["versions"][0]["resources"]
    assert (resource["resource"], resource["categories"]) == ("things", ["ex"])
    assert [below["subresource"] for below in resource["subresources"]] == ["status"]
    assert "example.dev" in [group["name"] for group in (await things.get("/apis"))["groups"]]


async def test_the_core_group_lists_pods_with_their_subresources(rest: Rest):
    listed = await rest.get("/api/v1")
    names = {entry["name"] for entry in listed["resources"]}
    assert {"pods", "pods/status", "pods/binding", "pods/eviction", "nodes/status"} <= names
    grouped = await rest.get("/api", accept=AGGREGATED)
    assert [item["metadata"] for item in grouped["items"]] == [{}]


async def test_a_kinds_schema_and_its_docstrings_are_in_its_document(things: Rest):
    index = await things.get("/openapi/v3")
    url = index["paths"]["apis/example.dev/v1"]["serverRelativeURL"]
    document = await things.get(url.partition("?")[0])
    schema = document["components"]["schemas"]["dev.example.v1.Thing"]
    assert schema["properties"]["spec"]["description"] == "What is wanted."
    (gvk,) = schema["x-kubernetes-group-version-kind"]
    assert gvk == {"group": "example.dev", "version": "v1", "kind": "Thing"}
    patch = document["paths"]["/apis/example.dev/v1/namespaces/{namespace}/things/{name}"]["patch"]
    assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]
