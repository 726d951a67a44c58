"""Who a bearer is at the stand-in, and what RBAC's objects let him do."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_local.apiserver.reviews import is_review, issued, reviewed

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
RIGHTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ACCOUNT = "system:serviceaccount:mine:reader"


def a_binding(subject: dict[str, str], *, namespace: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": namespace},
        "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [subject],
    }


def lists(
    user: str, namespace: str, *bindings: dict[str, Any], groups: tuple[str, ...] = ()
) -> bool:
    """Whether he may list claims there, by these bindings of one role."""
    rules = [{"apiGroups": ["vgpu.dev"], "resources": ["vgpuclaims"], "verbs": ["get", "list"]}]
    kinds = {
        "clusterroles": [{"metadata": {"name": "view"}, "rules": rules}],
        "clusterrolebindings": [b for b in bindings if not b["metadata"]["namespace"]],
        "rolebindings": [b for b in bindings if b["metadata"]["namespace"]],
    }
    wanted = {"verb": "list", "group": "vgpu.dev", "resource": "vgpuclaims", "namespace": namespace}
    body = {"spec": {"user": user, "groups": list(groups), "resourceAttributes": wanted}}
    answer = reviewed(RIGHTS, body, lambda name: kinds.get(name.partition(".")[0], []))
    return bool(answer["status"]["allowed"])


def of_the_account(kind: str) -> list[dict[str, Any]]:
    return [{"metadata": {"namespace": "mine", "name": "reader"}}] * (kind == "serviceaccounts")


def test_a_token_is_the_name_of_its_user() -> None:
    status = reviewed(TOKENS, {"spec": {"token": ACCOUNT}}, of_the_account)["status"]
    assert status["user"]["username"] == ACCOUNT
    assert "system:serviceaccounts:mine" in status["user"]["groups"]
    assert "authenticated" not in reviewed(TOKENS, {"spec": {}}, of_the_account)["status"]
    person = reviewed(TOKENS, {"spec": {"token": "jane"}}, of_the_account)["status"]
    assert person["user"] == {"username": "jane", "groups": ["system:authenticated"]}


def test_a_service_account_has_tokens_while_it_exists() -> None:
    path = "/api/v1/namespaces/mine/serviceaccounts/reader/token"
    made = issued(path, of_the_account)
    assert made is not None
    token = {"spec": {"token": made["status"]["token"]}}
    assert reviewed(TOKENS, token, of_the_account)["status"]["authenticated"] is True
    assert "authenticated" not in reviewed(TOKENS, token, lambda _: [])["status"]
    assert issued(path, lambda _: []) is None
    assert issued("/api/v1/namespaces/mine/pods", of_the_account) is None


@pytest.mark.parametrize(
    "subject",
    [
        {"kind": "ServiceAccount", "namespace": "mine", "name": "reader"},
        {"kind": "User", "name": ACCOUNT},
        {"kind": "Group", "name": "readers"},
    ],
)
def test_a_binding_of_a_namespace_holds_there_and_nowhere_else(subject: dict[str, str]) -> None:
    binding = a_binding(subject, namespace="mine")
    assert lists(ACCOUNT, "mine", binding, groups=("readers",))
    assert not lists(ACCOUNT, "theirs", binding, groups=("readers",))
    assert not lists(ACCOUNT, "", binding, groups=("readers",))
    assert lists(ACCOUNT, "theirs", a_binding(subject), groups=("readers",))
    assert not lists("another", "mine", binding)


def test_the_administrator_may_do_everything() -> None:
    assert lists("kubernetes-admin", "")


def test_reviews_are_known_by_their_paths() -> None:
    assert is_review(TOKENS)
    assert not is_review("/api/v1/pods")
