from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web

from rest import PODS, THINGS, Json, Refused, Rest, a_pod, a_thing
from vgpu_local.pki import Authority

MUTATING = "mutatingwebhookconfigurations"
VALIDATING = "validatingwebhookconfigurations"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
Answer = Callable[[Json], Json]


class Hook:
    """A webhook server on TLS; `answer` makes the response of a request, `asked` keeps them."""

    def __init__(self, authority: Authority) -> None:
        self.asked: list[Json] = []
        self.answer: Answer = lambda request: {"allowed": True}
        self.url = ""
        self._authority = authority
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None))

    async def start(self) -> None:
        await self._runner.setup()
        leaf = self._authority.leaf(names=("hook.default.svc", "localhost"))
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=leaf.server_context())
        await site.start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        review = orjson.loads(await request.read())
        self.asked.append(review["request"])
        response = {"uid": review["request"]["uid"], **self.answer(review["request"])}
        return web.json_response({**review, "response": response})


@pytest.fixture
async def hook(rest: Rest) -> AsyncIterator[Hook]:
    assert rest.server.authority is not None
    hook = Hook(rest.server.authority)
    await hook.start()
    yield hook
    await hook.stop()


async def register(rest: Rest, hook: Hook, plural: str = MUTATING, **webhook: Any) -> None:
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["pods"]}
    assert rest.server.ca_certificate is not None
    body = {
        "metadata": {"name": "hooks"},
        "webhooks": [
            {
                "name": "hook.example.dev",
                "clientConfig": {
                    "url": hook.url,
                    "caBundle": base64.b64encode(rest.server.ca_certificate).decode(),
                },
                "rules": [rule],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                **webhook,
            }
        ],
    }
    await rest.create(f"{REGISTRATION}/{plural}", body)


def patching(*operations: Json) -> Answer:
    patch = base64.b64encode(orjson.dumps(operations)).decode()
    return lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": patch}


def denying(message: str = "", **status: Any) -> Answer:
    return lambda request: {"allowed": False, "status": {"message": message, **status}}


async def test_a_mutating_webhook_changes_what_is_stored(rest: Rest, hook: Hook):
    hook.answer = patching({"op": "add", "path": "/metadata/labels", "value": {"a": "1"}})
    await register(rest, hook)
    pod = await rest.create(PODS, a_pod())
    assert pod["metadata"]["labels"] == {"a": "1"}
    (asked,) = hook.asked
    assert (asked["operation"], asked["namespace"], asked["name"]) == ("CREATE", "default", "p")
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert asked["object"]["spec"]["schedulerName"] == "default-scheduler"


async def test_what_a_webhook_makes_of_a_pod_is_defaulted_and_validated(rest: Rest, hook: Hook):
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
    path = "/spec/containers/0/resources"
    hook.answer = patching({"op": "add", "path": path, "value": {"limits": limits}})
    await register(rest, hook)
    pod = await rest.create(PODS, a_pod())
    assert pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpumem"] == "4k"
    hook.answer = patching({"op": "remove", "path": "/spec/containers/0"})
    with pytest.raises(Refused) as refused:
        await rest.create(PODS, a_pod("q"))
    assert refused.value.status == 422


async def test_a_denial_is_told_in_the_servers_words(rest: Rest, hook: Hook):
    hook.answer = denying("no such claim", code=403, reason="Forbidden")
    await register(rest, hook, VALIDATING)
    with pytest.raises(Refused) as refused:
        await rest.create(PODS, a_pod())
    assert (refused.value.status, refused.value.body["reason"]) == (403, "Forbidden")
    assert refused.value.message == (
        'admission webhook "hook.example.dev" denied the request: no such claim'
    )
    assert await rest.names(PODS) == []


async def test_a_denial_without_a_word_is_400_without_explanation(rest: Rest, hook: Hook):
    hook.answer = lambda request: {"allowed": False}
    await register(rest, hook, VALIDATING)
    with pytest.raises(Refused) as refused:
        await rest.create(PODS, a_pod())
    assert refused.value.status == 400
    assert refused.value.message.endswith("denied the request without explanation")


async def test_warnings_of_a_webhook_reach_the_client(rest: Rest, hook: Hook):
    hook.answer = lambda request: {"allowed": True, "warnings": ["mind the gap"]}
    await register(rest, hook, VALIDATING)
    await rest.create(PODS, a_pod())
    assert rest.warnings == ['299 - "mind the gap"']


async def test_a_webhook_that_is_down_stops_the_write_or_is_skipped_by_policy(
    rest: Rest, hook: Hook
):
    await hook.stop()
    await register(rest, hook)
    with pytest.raises(Refused) as refused:
        await rest.create(PODS, a_pod())
    assert refused.value.status == 500
    assert 'failed calling webhook "hook.example.dev"' in refused.value.message
    policy = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]
    await rest.json_patch(f"{REGISTRATION}/{MUTATING}/hooks", policy)
    await rest.create(PODS, a_pod())


async def test_a_webhook_whose_certificate_is_not_vouched_for_is_not_trusted(
    rest: Rest, hook: Hook
):
    other = base64.b64encode(Authority().certificate).decode()
    await register(rest, hook, clientConfig={"url": hook.url, "caBundle": other})
    with pytest.raises(Refused) as refused:
        await rest.create(PODS, a_pod())
    assert refused.value.status == 500
    assert hook.asked == []


async def test_a_service_reference_leads_where_the_server_was_told(rest: Rest, hook: Hook):
    rest.server.services["default/hook"] = hook.url
    assert rest.server.ca_certificate is not None
    service = {"namespace": "default", "name": "hook", "path": "/mutate"}
    bundle = base64.b64encode(rest.server.ca_certificate).decode()
    await register(rest, hook, clientConfig={"service": service, "caBundle": bundle})
    await rest.create(PODS, a_pod())
    assert len(hook.asked) == 1


@pytest.mark.parametrize(
    "webhook",
    [
        {"objectSelector": {"matchLabels": {"a": "1"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}},
        {"rules": [{"operations": ["UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods"]}]},
        {"rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods"], "scope": "Cluster"}]},
        {"matchConditions": [{"name": "not-us",
                              "expression": "request.userInfo.username != 'kubernetes-admin'"}]},
    ],
)  # fmt: skip
async def test_a_webhook_is_not_asked_about_what_it_does_not_select(
    rest: Rest, hook: Hook, webhook: Json
):
    hook.answer = denying("no")
    await register(rest, hook, VALIDATING, **webhook)
    await rest.create(PODS, a_pod())
    assert hook.asked == []


async def test_an_update_shows_both_objects_and_a_deletion_the_old_one(things: Rest, hook: Hook):
    await things.create(THINGS, a_thing())
    rule = {"operations": ["UPDATE", "DELETE"], "apiGroups": ["example.dev"],
            "apiVersions": ["v1"], "resources": ["things", "things/status"]}  # fmt: skip
    await register(things, hook, VALIDATING, rules=[rule])
    await things.merge(f"{THINGS}/t", {"spec": {"size": 2}})
    await things.merge(f"{THINGS}/t/status", {"status": {"state": "x"}})
    await things.delete(f"{THINGS}/t")
    update, status, deletion = hook.asked
    assert (update["oldObject"]["spec"]["size"], update["object"]["spec"]["size"]) == (1, 2)
    assert status["subResource"] == "status"
    assert (deletion["operation"], deletion["object"]) == ("DELETE", None)
    assert deletion["oldObject"]["status"] == {"state": "x"}


async def test_a_binding_is_reviewed_as_a_binding(rest: Rest, hook: Hook):
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["pods/binding"]}  # fmt: skip
    await rest.create(PODS, a_pod())
    await register(rest, hook, VALIDATING, rules=[rule])
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    await rest.create(f"{PODS}/p/binding", binding)
    (asked,) = hook.asked
    assert (asked["kind"]["kind"], asked["subResource"]) == ("Binding", "binding")


async def test_an_object_that_moved_while_a_webhook_was_asked_is_prepared_again(
    things: Rest, hook: Hook
):
    await things.create(THINGS, a_thing())
    rule = {"operations": ["UPDATE"], "apiGroups": ["example.dev"], "apiVersions": ["v1"],
            "resources": ["things"]}  # fmt: skip
    await register(things, hook, VALIDATING, rules=[rule])
    await asyncio.gather(
        *(things.merge(f"{THINGS}/t", {"metadata": {"labels": {f"k{at}": "1"}}}) for at in range(5))
    )
    assert len((await things.get(f"{THINGS}/t"))["metadata"]["labels"]) == 5
    assert len(hook.asked) > 5
