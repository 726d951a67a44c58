"""TokenReview and SubjectAccessReview: they identify a bearer, and apply the objects of RBAC.

Every bearer is the user of that name; a service account's bearer is
`system:serviceaccount:NS:NAME`, which its TokenRequest returns and which is valid while the account
exists. Roles and bindings are evaluated as stored, without aggregation. This affects only reviews:
the stand-in itself allows every request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vgpu_local.apiserver import errors
from vgpu_local.apiserver.kinds import Obj

ADMINISTRATOR = "kubernetes-admin"
_ACCOUNT = "system:serviceaccount:"
_PATHS = {
    "/apis/authentication.k8s.io/v1/tokenreviews": "TokenReview",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": "SubjectAccessReview",
}
_TOKEN_REQUEST = re.compile(r"/api/v1/namespaces/([^/]+)/serviceaccounts/([^/]+)/token")
_NO_END = "2999-01-01T00:00:00Z"
_RBAC = "rbac.authorization.k8s.io"

Listed = Callable[[str], list[Obj]]
"""The objects of a kind, by `plural.group`."""


def is_review(path: str) -> bool:
    """Return True if the path is one of reviews."""
    return path in _PATHS


def issued(path: str, listed: Listed) -> Obj | None:
    """Return a TokenRequest with its token; None for other paths or accounts."""
    found = _TOKEN_REQUEST.fullmatch(path)
    if found is None:
        return None
    namespace, name = found.groups()
    user = f"{_ACCOUNT}{namespace}:{name}"
    if not _exists(user, listed):
        return None
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"audiences": []},
        "status": {"token": user, "expirationTimestamp": _NO_END},
    }


def reviewed(path: str, body: Obj, listed: Listed) -> Obj:
    """Return the review with its status."""
    spec = body.get("spec") or {}
    kind = _PATHS[path]
    status = _token(spec, listed) if kind == "TokenReview" else {"allowed": _allowed(spec, listed)}
    return {**body, "kind": kind, "metadata": {"creationTimestamp": None}, "status": status}


def _token(spec: Mapping[str, Any], listed: Listed) -> Obj:
    user = spec.get("token") or ""
    if not user:
        raise errors.bad_request("token is required for TokenReview in authentication")
    if user.startswith(_ACCOUNT) and not _exists(user, listed):
        return {"user": {}}
    return {"authenticated": True, "user": {"username": user, "groups": _groups(user)}}


def _exists(user: str, listed: Listed) -> bool:
    there = (account["metadata"] for account in listed("serviceaccounts"))
    return any(f"{_ACCOUNT}{each['namespace']}:{each['name']}" == user for each in there)


def _groups(user: str) -> list[str]:
    if not user.startswith(_ACCOUNT):
        return ["system:authenticated"]
    namespace = user.removeprefix(_ACCOUNT).partition(":")[0]
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]


def _allowed(spec: Mapping[str, Any], listed: Listed) -> bool:
    user, groups = spec.get("user") or "", set(spec.get("groups") or ())
    if user == ADMINISTRATOR:
        return True
    wanted = spec.get("resourceAttributes") or spec.get("nonResourceAttributes") or {}
    return any(_covers(rule, wanted) for rule in _rules(user, groups, wanted, listed))


def _rules(
    user: str, groups: set[str], wanted: Mapping[str, Any], listed: Listed
) -> Iterator[Mapping[str, Any]]:
    """Return the rules that apply to a user where the requested object is."""
    namespace = wanted.get("namespace") or ""
    roles = {
        ("ClusterRole", role["metadata"]["name"]): role for role in listed(f"clusterroles.{_RBAC}")
    }
    for role in listed(f"roles.{_RBAC}"):
        if role["metadata"]["namespace"] == namespace:
            roles["Role", role["metadata"]["name"]] = role
    bindings = listed(f"clusterrolebindings.{_RBAC}")
    if namespace:
        bindings += [
            binding
            for binding in listed(f"rolebindings.{_RBAC}")
            if binding["metadata"]["namespace"] == namespace
        ]
    for binding in bindings:
        if any(_is_subject(subject, user, groups) for subject in binding.get("subjects") or ()):
            found = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
            yield from (found or {}).get("rules") or ()


def _is_subject(subject: Mapping[str, Any], user: str, groups: set[str]) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user == f"{_ACCOUNT}{subject['namespace']}:{subject['name']}"
    return subject["name"] == user if subject["kind"] == "User" else subject["name"] in groups


def _covers(rule: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    def has(field: str, value: str) -> bool:
        return not {"*", value}.isdisjoint(rule.get(field) or ())

    if "path" in wanted:
        return has("verbs", wanted["verb"]) and has("nonResourceURLs", wanted["path"])
    named = rule.get("resourceNames")
    return (
        has("verbs", wanted["verb"])
        and has("apiGroups", wanted.get("group") or "")
        and has("resources", wanted["resource"])
        and (not named or wanted.get("name") in named)
    )
