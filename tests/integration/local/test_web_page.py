"""The web page shows each visitor what they may see, live, and says when something is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.resources import NAMESPACES, PODS, VGPU_CLAIMS, Resource
from vgpu_client.transport import Object
from vgpu_local.accounts import SERVICE_ACCOUNTS, token
from vgpu_local.cluster import LocalCluster
from vgpu_local.nodes import t4_node
from vgpu_local.page import Page
from vgpu_local.programs import ROOT
from vgpu_local.steps import a_container, a_pod, until

RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False)
CLUSTER_ROLE_BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False)
ROLE_BINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding", True)
ROLES = ROOT / "manifests" / "base" / "tenants" / "roles.yaml"
DEVICE_MIB = 16_384
AWAY_S = 4.0

pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True, slots=True)
class Watched:
    """A cluster with a page.

    In each of the namespaces `mine` and `theirs` a pod `runs`, and in `theirs` one `waits`.

    Attributes:
        admin: A token of an account that may list everything that is shown.
        tenant: A token of an account that may list devices, and the claims of `mine`.
        stranger: A token of an account that may list nothing.
    """

    cluster: LocalCluster
    page: Page
    admin: str
    tenant: str
    stranger: str

    def get(self, path: str, shown: str) -> Any:
        status, found = self.page.get(f"/api/v1{path}", shown)
        assert status == 200, found
        return found


@pytest.fixture(scope="module")
def watched(whole_cluster: Callable[..., LocalCluster]) -> Iterator[Watched]:
    with whole_cluster([t4_node("one")]) as cluster:
        for namespace in ("mine", "theirs"):
            made(cluster, NAMESPACES, {"metadata": {"name": namespace}})
        for role in yaml.safe_load_all(Path(ROLES).read_text()):
            made(cluster, CLUSTER_ROLES, role)
        reads_nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
        made(cluster, CLUSTER_ROLES, {"metadata": {"name": "nodes"}, "rules": [reads_nodes]})
        admin, tenant, stranger = (
            an_account(cluster, name) for name in ("admin", "tenant", "stranger")
        )
        for role in ("nodes", "vgpu-view", "vgpu-devices-view"):
            bind(cluster, "admin", role)
        bind(cluster, "tenant", "vgpu-devices-view")
        bind(cluster, "tenant", "vgpu-view", namespace="mine")
        for namespace, name, mib in (
            ("mine", "runs", 4096),
            ("theirs", "runs", 2048),
            ("theirs", "waits", DEVICE_MIB),
        ):
            made(cluster, PODS, a_slice(name, mib, namespace))
        for namespace in ("mine", "theirs"):
            cluster.wait_for(
                PODS, "runs", lambda pod: pod["status"].get("phase") == "Running",
                namespace=namespace,
            )  # fmt: skip
        page = cluster.start_page()
        yield Watched(cluster, page, admin, tenant, stranger)


def made(cluster: LocalCluster, resource: Resource, obj: Object) -> Object:
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return cluster.run(cluster.api.create(resource, {**kind, **obj}))


def an_account(cluster: LocalCluster, name: str) -> str:
    made(cluster, SERVICE_ACCOUNTS, {"metadata": {"namespace": "default", "name": name}})
    return cluster.run(token(cluster.api, ("default", name)))


def bind(cluster: LocalCluster, account: str, role: str, *, namespace: str = "") -> None:
    binding = {
        "metadata": {"name": f"{account}-{role}"} | ({"namespace": namespace} if namespace else {}),
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": account}],
    }
    made(cluster, ROLE_BINDINGS if namespace else CLUSTER_ROLE_BINDINGS, binding)


def a_slice(name: str, mib: int, namespace: str = "mine") -> Object:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
    pod = a_pod(name, a_container(limits=limits))
    return {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}


def test_who_shows_no_token_or_a_wrong_one_sees_nothing(watched: Watched) -> None:
    for shown in ("", "system:serviceaccount:default:none"):
        status, found = watched.page.get("/api/v1/fleet", shown)
        assert (status, list(found)) == (401, ["error"])
    status, page = watched.page.get("/")
    assert (status, "<title>vgpu</title>" in page) == (200, True)


def test_an_administrator_sees_the_fleet_its_nodes_and_every_claim(watched: Watched) -> None:
    until(watched.cluster, lambda: watched.get("/fleet", watched.admin)["claims"]["waiting"] == 1)
    fleet = watched.get("/fleet", watched.admin)
    assert (fleet["devices"]["nodes"], fleet["devices"]["memory"]["held"]) == (1, 6144)
    assert [each["name"] for each in fleet["namespaces"]["items"]] == ["mine", "theirs"]
    (node,) = watched.get("/nodes", watched.admin)["items"]
    assert (node["name"], node["state"], node["claims"]) == ("one", "Ready", 2)
    waiting = watched.get("/claims?state=Waiting", watched.admin)["items"]
    assert [(each["namespace"], each["reason"]) for each in waiting] == [
        ("theirs", "CardInsufficientMemory")
    ]


def test_a_waiting_claim_is_explained_with_those_that_are_in_its_way(watched: Watched) -> None:
    until(watched.cluster, lambda: watched.get("/claims?state=Waiting", watched.admin)["items"])
    (row,) = watched.get("/claims?state=Waiting", watched.admin)["items"]
    why = watched.get(f"/claims/theirs/{row['name']}", watched.admin)["why"]
    (node,) = why["nodes"]
    assert (node["name"], node["serves"]) == ("one", False)
    assert {each.split("/")[0] for each in node["end_first"]} == {"mine", "theirs"}


def test_a_tenant_sees_the_claims_of_his_namespaces_and_counts_of_others(watched: Watched) -> None:
    claims = watched.get("/claims", watched.tenant)
    assert [each["namespace"] for each in claims["items"]] == ["mine"]
    (device,) = watched.get("/nodes/one", watched.tenant)["items"]
    assert [each["namespace"] for each in device["holders"]] == ["mine"]
    assert device["others"]["claims"] == 1
    theirs = watched.get("/claims?namespace=theirs", watched.admin)["items"][0]
    status, found = watched.page.get(f"/api/v1/claims/theirs/{theirs['name']}", watched.tenant)
    missing, none = watched.page.get("/api/v1/claims/theirs/none", watched.tenant)
    assert (status, found) == (missing, none)
    assert status == 403


def test_a_stranger_sees_that_there_is_nothing_that_he_may_see(watched: Watched) -> None:
    me = watched.get("/me", watched.stranger)
    assert (me["devices"], me["everyNamespace"], me["namespaces"]) == (False, False, [])
    fleet = watched.get("/fleet", watched.stranger)
    assert (fleet["devices"], fleet["claims"]["total"], fleet["others"]) == (None, 0, None)
    assert watched.page.get("/api/v1/nodes", watched.stranger)[0] == 403


def test_a_claim_that_comes_and_goes_is_shown_without_asking_again(watched: Watched) -> None:
    with watched.page.stream("/api/v1/claims", watched.tenant) as documents:
        before = next(documents)["total"]
        made(watched.cluster, PODS, a_slice("comes", 1024))
        shown = next(each for each in documents if each["total"] > before)
        row = next(each for each in shown["items"] if each["pod"] == "comes" or not each["pod"])
        watched.cluster.run(watched.cluster.api.delete(PODS, "comes", namespace="mine", grace_s=1))
        assert next(each for each in documents if each["total"] == before)
    assert row["namespace"] == "mine"


def test_a_pasted_pod_is_placed_and_nothing_is_made(watched: Watched) -> None:
    text = yaml.safe_dump(a_slice("asks", 1024))
    status, found = watched.page.get("/api/v1/what-if", watched.tenant, body=text)
    assert (status, found["pods"][0]["node"]) == (200, "one"), found
    too_much = yaml.safe_dump(a_slice("asks", DEVICE_MIB))
    _, found = watched.page.get("/api/v1/what-if", watched.tenant, body=too_much)
    assert "CardInsufficientMemory" in found["pods"][0]["refused"]
    names = {pod["metadata"]["name"] for pod in watched.cluster.objects("pods", "mine")}
    assert "asks" not in names


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("", 422, "the text: no pods or claims"),
        ("kind: [", 422, "the text: "),
        ("kind: Service", 422, "the text: no pods or claims"),
        ("#" * ((64 << 10) + 1), 413, "the text is larger than 64 KiB"),
    ],
    ids=["empty", "no YAML", "no pod", "too large"],
)
def test_a_bad_question_is_refused_in_words(
    watched: Watched, body: str, status: int, text: str
) -> None:
    answered, found = watched.page.get("/api/v1/what-if", watched.admin, body=body)
    assert answered == status
    assert found["error"].startswith(text)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/nodes?page=0", 400, 'page: Invalid value: "0"'),
        ("/nodes?sort=colour", 400, "sort: Unsupported value"),
        ("/claims?colour=red", 400, "colour: Forbidden"),
        ("/nodes/none", 404, "no node none with devices"),
        ("/claims/mine/none", 404, "no claim none in namespace mine"),
        ("/none", 404, "Not Found"),
    ],
)
def test_a_bad_address_is_refused_in_words(
    watched: Watched, path: str, status: int, text: str
) -> None:
    answered, found = watched.page.get(f"/api/v1{path}", watched.admin)
    assert (answered, found["error"].startswith(text)) == (status, True), found


def test_while_the_api_server_is_away_new_visitors_are_asked_to_wait(watched: Watched) -> None:
    """Tokens cannot be reviewed without it; afterwards everything is shown again, and live."""
    server = watched.cluster.server
    away = threading.Thread(target=server.restart, kwargs={"down_for": AWAY_S})
    unknown = iter(f"system:serviceaccount:default:none-{number}" for number in range(1_000_000))
    away.start()
    try:
        until(
            watched.cluster,
            lambda: watched.page.get("/api/v1/fleet", next(unknown))[0] == 503,
            limit=AWAY_S + 30,
        )
        assert watched.page.get("/livez")[0] == 200
    finally:
        away.join()
    until(
        watched.cluster,
        lambda: watched.page.get("/api/v1/fleet", next(unknown))[0] == 401,
        limit=30,
    )
    made(watched.cluster, VGPU_CLAIMS, a_claim_of("late", "mine"))
    until(
        watched.cluster,
        lambda: watched.page.get("/api/v1/claims/mine/late", watched.tenant)[0] == 200,
        limit=60,
    )


def a_claim_of(name: str, namespace: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"requests": [{"memory": "1Gi"}]},
    }
