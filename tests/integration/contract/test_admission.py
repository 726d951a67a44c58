from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web

from rest import CONFIGMAPS, PODS, SECRETS, THINGS, Json, Refused, Rest, a_pod, a_thing
from vgpu_local.pki import Authority

MUTATING = "mutatingwebhookconfigurations"
VALIDATING = "validatingwebhookconfigurations"
GROUP = "example.dev"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
Answer = Callable[[Json], Json]


class Hook:
    """A webhook server on TLS.

    Attributes:
        asked: The requests so far.
        answer: Makes the response to a request.
        is_known: Set once the API server has asked about ConfigMaps, so it knows the webhook.
        url: Where it listens.
        bundle: The CA bundle that a webhook configuration must name.
    """

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.answer: Answer = lambda request: {"allowed": True}
        self.is_known = asyncio.Event()
        self.url = ""
        self._authority = Authority()
        self.bundle = base64.b64encode(self._authority.certificate).decode()
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
        if request.path == "/known":
            self.is_known.set()
            answer: Json = {"allowed": True}
        else:
            self.asked.append(review["request"])
            answer = self.answer(review["request"])
        response = {"uid": review["request"]["uid"], **answer}
        return web.json_response({**review, "response": response})


@pytest.fixture
async def hook(rest: Rest) -> AsyncIterator[Hook]:
    hook = Hook()
    await hook.start()
    yield hook
    await hook.stop()
    for plural in (MUTATING, VALIDATING):
        if "hooks" in await rest.names(f"{REGISTRATION}/{plural}"):
            await rest.delete(f"{REGISTRATION}/{plural}/hooks")


def a_rule(resource: str, *operations: str, group: str = "", **rule: Any) -> Json:
    return {
        "operations": operations or ["*"],
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "resources": [resource],
        **rule,
    }


async def register(rest: Rest, hook: Hook, plural: str = MUTATING, **webhook: Any) -> None:
    """Register a webhook for the test's namespace, and wait until the API server knows it."""
    common = {
        "clientConfig": {"url": f"{hook.url}/known", "caBundle": hook.bundle},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": rest.namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "matchPolicy": "Exact",
        "timeoutSeconds": 3,
        "failurePolicy": "Fail",
    }
    client = {"url": f"{hook.url}/", "caBundle": hook.bundle}
    known = {**common, "name": "known.example.dev", "rules": [a_rule("configmaps")]}
    itself = {"name": "hook.example.dev", "clientConfig": client, "rules": [a_rule("pods")]}
    body = {"metadata": {"name": "hooks"}, "webhooks": [known, {**common, **itself, **webhook}]}
    await rest.create(f"{REGISTRATION}/{plural}", body)
    async with asyncio.timeout(20):
        while not hook.is_known.is_set():
            await rest.create(CONFIGMAPS, {"metadata": {"name": "x"}}, dryRun="All")


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
    assert (asked["operation"], asked["namespace"], asked["name"]) == (
        "CREATE",
        rest.namespace,
        "p",
    )
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
    await register(rest, hook)
    await register(rest, hook, VALIDATING, failurePolicy="Ignore", rules=[a_rule("secrets")])
    await hook.stop()
    with pytest.raises(Refused) as refused:
        await rest.create(PODS, a_pod())
    assert refused.value.status == 500
    assert 'failed calling webhook "hook.example.dev"' in refused.value.message
    await rest.create(SECRETS, {"metadata": {"name": "s"}})


async def test_a_webhook_whose_certificate_is_not_vouched_for_is_not_trusted(
    rest: Rest, hook: Hook
):
    other = base64.b64encode(Authority().certificate).decode()
    await register(rest, hook, clientConfig={"url": hook.url, "caBundle": other})
    with pytest.raises(Refused) as refused:
        await rest.create(PODS, a_pod())
    assert refused.value.status == 500
    assert hook.asked == []


@pytest.mark.parametrize(
    "webhook",
    [
        {"objectSelector": {"matchLabels": {"a": "1"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}},
        {"rules": [a_rule("pods", "UPDATE")]},
        {"rules": [a_rule("pods", scope="Cluster")]},
    ],
)
async def test_a_webhook_is_not_asked_about_what_it_does_not_select(
    rest: Rest, hook: Hook, webhook: Json
):
    hook.answer = denying("no")
    await register(rest, hook, VALIDATING, **webhook)
    await rest.create(PODS, a_pod())
    assert hook.asked == []


async def test_a_condition_leaves_a_user_out(rest: Rest, hook: Hook):
    hook.answer = denying("no")
    others = {"name": "others", "expression": f"request.userInfo.username != '{rest.user}'"}
    await register(rest, hook, VALIDATING, matchConditions=[others])
    await rest.create(PODS, a_pod())
    assert hook.asked == []


async def test_an_update_shows_both_objects_and_a_deletion_the_old_one(things: Rest, hook: Hook):
    await things.create(THINGS, a_thing())
    both = [a_rule(name, "UPDATE", "DELETE", group=GROUP) for name in ("things", "things/status")]
    await register(things, hook, VALIDATING, rules=both)
    await things.merge(f"{THINGS}/t", {"spec": {"size": 2}})
    await things.merge(f"{THINGS}/t/status", {"status": {"state": "x"}})
    await things.delete(f"{THINGS}/t")
    update, status, deletion = hook.asked
    assert (update["oldObject"]["spec"]["size"], update["object"]["spec"]["size"]) == (1, 2)
    assert status["subResource"] == "status"
    assert (deletion["operation"], deletion["object"]) == ("DELETE", None)
    assert deletion["oldObject"]["status"] == {"state": "x"}


async def test_a_binding_is_reviewed_as_a_binding(rest: Rest, hook: Hook):
    await rest.create(PODS, a_pod())
    await register(rest, hook, VALIDATING, rules=[a_rule("pods/binding", "CREATE")])
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    await rest.create(f"{PODS}/p/binding", binding)
    (asked,) = hook.asked
    assert (asked["kind"]["kind"], asked["subResource"]) == ("Binding", "binding")


async def test_an_object_that_moved_while_a_webhook_was_asked_is_prepared_again(
    things: Rest, hook: Hook
):
    await things.create(THINGS, a_thing())
    await register(things, hook, VALIDATING, rules=[a_rule("things", "UPDATE", group=GROUP)])
    await asyncio.gather(
        *(things.merge(f"{THINGS}/t", {"metadata": {"labels": {f"k{at}": "1"}}}) for at in range(5))
    )
    assert len((await things.get(f"{THINGS}/t"))["metadata"]["labels"]) == 5
