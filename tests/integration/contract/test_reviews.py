"""TokenReview resolves a bearer, and SubjectAccessReview follows RBAC objects."""

from __future__ import annotations

import asyncio

import pytest

from rest import Json, Refused, Rest

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
RIGHTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


def account(rest: Rest) -> str:
    return f"system:serviceaccount:{rest.namespace}:reader"


async def lists(rest: Rest, user: str, namespace: str, *groups: str) -> bool:
    """Return True if a user may list claims there."""
    wanted = {"verb": "list", "group": "vgpu.dev", "resource": "vgpuclaims", "namespace": namespace}
    body = {"spec": {"user": user, "groups": list(groups), "resourceAttributes": wanted}}
    answer = await rest.create(RIGHTS, body)
    return bool(answer["status"]["allowed"])


async def soon_lists(rest: Rest, user: str, namespace: str, *groups: str) -> None:
    """Wait until the user may list them; the authorizer learns of bindings through a watch."""
    async with asyncio.timeout(20):
        while not await lists(rest, user, namespace, *groups):
            pass


async def bind(rest: Rest, path: str, subject: Json) -> None:
    """Let a subject read claims, within the namespace of `path` or everywhere."""
    name = f"{rest.namespace}-{subject['kind'].lower()}"
    rules = [{"apiGroups": ["vgpu.dev"], "resources": ["vgpuclaims"], "verbs": ["get", "list"]}]
    await rest.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    group = "" if subject["kind"] == "ServiceAccount" else "rbac.authorization.k8s.io"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subjects = [{"apiGroup": group, **subject}]
    await rest.create(path, {"metadata": {"name": name}, "roleRef": role, "subjects": subjects})


async def test_a_service_account_has_tokens_while_it_exists(rest: Rest):
    reviews = []
    for name in ("reader", "former"):
        await rest.create(ACCOUNTS, {"metadata": {"name": name}})
        made = await rest.create(f"{ACCOUNTS}/{name}/token", {"spec": {}})
        reviews.append({"spec": {"token": made["status"]["token"]}})
    await rest.delete(f"{ACCOUNTS}/former")
    there, gone = [(await rest.create(TOKENS, review))["status"] for review in reviews]
    assert there["authenticated"]
    assert there["user"]["username"] == account(rest)
    assert f"system:serviceaccounts:{rest.namespace}" in there["user"]["groups"]
    assert "authenticated" not in gone


async def test_a_review_needs_a_token(rest: Rest):
    with pytest.raises(Refused) as refused:
        await rest.create(TOKENS, {"spec": {"token": ""}})
    assert refused.value.status == 400


async def test_a_binding_of_a_namespace_holds_there_and_nowhere_else(rest: Rest):
    within = f"{RBAC}/namespaces/default/rolebindings"
    user, group = f"{rest.namespace}-user", f"{rest.namespace}-group"
    subjects: list[tuple[Json, str, tuple[str, ...]]] = [
        ({"kind": "ServiceAccount", "namespace": rest.namespace, "name": "reader"},
         account(rest), ()),
        ({"kind": "User", "name": user}, user, ()),
        ({"kind": "Group", "name": group}, "jane", (group,)),
    ]  # fmt: skip
    for subject, name, groups in subjects:
        await bind(rest, within, subject)
        await soon_lists(rest, name, rest.namespace, *groups)
        assert not await lists(rest, name, "theirs", *groups)
        assert not await lists(rest, name, "", *groups)
    assert not await lists(rest, "another", rest.namespace)


async def test_a_binding_of_the_cluster_holds_everywhere(rest: Rest):
    user = f"{rest.namespace}-user"
    await bind(rest, f"{RBAC}/clusterrolebindings", {"kind": "User", "name": user})
    await soon_lists(rest, user, "theirs")
    assert await lists(rest, user, "")


async def test_the_administrator_may_do_everything(rest: Rest):
    assert await lists(rest, rest.user, "", "system:masters")
