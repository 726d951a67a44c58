"""The page over HTTP: the visitors that it answers, its headers, and the lives of its streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from builders import GATE
from set_clock import SetClock
from vgpu_client.listen import listen
from vgpu_operator.engine import events
from vgpu_operator.web import server, views
from vgpu_operator.web.history import History
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.server import LARGEST_TEXT, WebServer
from vgpu_operator.web.sight import KNOWN_S, REFUSED_S, Sight, Visitors
from web_world import EVERYTHING, Reviews, a_holder, a_mirror, a_waiter

POD = (
    "{kind: Pod, metadata: {name: p, namespace: mine}, spec: {containers: [{name: a, image: x, "
    "resources: {limits: {nvidia.com/gpu: 1}}}]}}"
)


@dataclass
class Served:
    """A server, and a client of it."""

    url: str
    mirror: Mirror
    reviews: Reviews
    clock: SetClock
    synced: asyncio.Event
    session: aiohttp.ClientSession

    async def get(self, path: str, token: str = "admin", **headers: str) -> tuple[int, Any]:
        given = {"Authorization": f"Bearer {token}", **headers} if token else headers
        async with self.session.get(self.url + path, headers=given) as answer:
            return answer.status, await answer.json()

    async def ask(self, text: str | bytes, token: str = "tenant") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.url}/api/v1/what-if"
        async with self.session.post(url, data=text, headers=headers) as answer:
            return answer.status, await answer.json()

    @asynccontextmanager
    async def stream(self, path: str, token: str = "admin") -> AsyncIterator[AsyncIterator[Any]]:
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        async with self.session.get(self.url + path, headers=headers) as answer:
            assert answer.content_type == "text/event-stream"
            yield _documents(answer)


async def _documents(answer: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(server, "_SHORTEST_PAUSE_S", 0.01)
    claims = [a_holder("a", namespace="mine"), a_waiter("b", namespace="theirs")]
    async with serving(a_mirror(claims=claims)) as page:
        yield page


@asynccontextmanager
async def serving(mirror: Mirror) -> AsyncIterator[Served]:
    clock = SetClock(100.0)
    reviews = Reviews(
        {"admin": EVERYTHING, "tenant": {"gpudevices", "vgpuclaims in mine"}, "nobody": set()}
    )
    visitors = Visitors(reviews, clock=clock)  # type: ignore[arg-type]
    listening, synced = listen("127.0.0.1", 0), asyncio.Event()
    synced.set()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with (
        WebServer(mirror, visitors, History(None, clock), listening, tls=None, synced=synced),
        aiohttp.ClientSession() as session,
    ):
        yield Served(url, mirror, reviews, clock, synced, session)


@pytest.mark.parametrize("path", ["/", "/app.js", "/style.css", "/icon.svg"])
async def test_the_page_is_served_to_anybody_and_may_load_nothing_from_elsewhere(
    served: Served, path: str
) -> None:
    async with served.session.get(served.url + path) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert answer.status == 200
        assert await answer.text()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "Set-Cookie" not in answer.headers
    assert served.reviews.asked == []


@pytest.mark.parametrize(
    "path",
    [
        *("/me", "/fleet", "/nodes", "/nodes/node-0", "/claims", "/claims/mine/a", "/idle"),
        *("/search?text=a", "/history/fleet", "/history/claims/mine/a"),
    ],
)
async def test_documents_take_a_token_that_the_api_server_knows(served: Served, path: str) -> None:
    assert await served.get(f"/api/v1{path}", token="") == (
        401,
        {"error": "a token is required: Authorization: Bearer TOKEN"},
    )
    assert (await served.get(f"/api/v1{path}", token="forged"))[0] == 401
    status, found = await served.get(f"/api/v1{path}")
    assert (status, bool(found)) == (200, True)


async def test_a_visitor_is_told_who_he_is_and_what_he_may_see(served: Served) -> None:
    assert (await served.get("/api/v1/me", token="tenant"))[1] == {
        "user": "tenant",
        "devices": True,
        "nodes": False,
        "everyNamespace": False,
        "namespaces": ["mine"],
    }


async def test_refusals_are_named(served: Served) -> None:
    assert await served.get("/api/v1/nodes", token="nobody") == (
        403,
        {"error": 'user "nobody" cannot list gpudevices.vgpu.dev'},
    )
    status, found = await served.get("/api/v1/claims/theirs/b", token="tenant")
    assert (status, found["error"]) == (
        403,
        'user "tenant" cannot list vgpuclaims.vgpu.dev in namespace "theirs"',
    )
    assert (await served.get("/api/v1/nodes?page=x"))[1]["error"].startswith("page: Invalid value")
    assert (await served.get("/api/v1/nodes/none"))[0] == 404
    assert (await served.get("/api/v2"))[0] == 404


async def test_rights_are_reviewed_again_after_some_seconds(served: Served) -> None:
    await served.get("/api/v1/nodes", token="tenant")
    asked = len(served.reviews.asked)
    await served.get("/api/v1/nodes", token="tenant")
    assert len(served.reviews.asked) == asked
    served.reviews.rights = {"tenant": set()}
    served.clock.time += KNOWN_S + 1
    assert (await served.get("/api/v1/nodes", token="tenant"))[0] == 403


async def test_while_the_api_server_is_away_nothing_is_shown(served: Served) -> None:
    served.reviews.away = True
    status, found = await served.get("/api/v1/fleet")
    assert (status, found["error"]) == (
        503,
        "the token cannot be reviewed now: no answer in time",
    )


async def test_before_the_cluster_was_read_nothing_is_shown(served: Served) -> None:
    served.synced.clear()
    assert (await served.get("/api/v1/fleet"))[0] == 503
    async with served.session.get(f"{served.url}/readyz") as answer:
        assert (answer.status, await answer.text()) == (503, "reading the cluster")


async def test_a_stream_brings_each_change(served: Served) -> None:
    async with served.stream("/api/v1/claims", "tenant") as documents:
        assert (await anext(documents))["total"] == 1
        served.mirror.observe(events.ClaimObserved(a_holder("c", namespace="mine")))
        assert (await anext(documents))["total"] == 2


async def test_a_stream_ends_with_the_right_to_it(served: Served) -> None:
    async with served.stream("/api/v1/nodes", "tenant") as documents:
        await anext(documents)
        served.reviews.rights = {"tenant": set()}
        served.clock.time += KNOWN_S + 1
        served.mirror.observe(events.ClaimObserved(a_holder("c", namespace="mine")))
        assert await anext(documents) == {
            "status": 403,
            "error": 'user "tenant" cannot list gpudevices.vgpu.dev',
        }
        assert [each async for each in documents] == []


@pytest.mark.parametrize("path", ["/me", "/fleet", "/nodes/node-1", "/claims/mine/a", "/nodes"])
async def test_a_parameter_that_a_document_does_not_have_is_refused(
    served: Served, path: str
) -> None:
    status, answer = await served.get(f"/api/v1{path}?x=1")
    assert (status, answer) == (400, {"error": "x: Forbidden: the page has no such parameter"})


async def test_documents_of_one_user_do_not_take_the_place_of_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    fleet = views.fleet

    def noted(mirror: Mirror, sight: Sight) -> Any:
        rendered.append(sight.user)
        return fleet(mirror, sight)

    monkeypatch.setattr(views, "fleet", noted)
    await served.get("/api/v1/fleet")
    for number in range(200):
        assert (await served.get(f"/api/v1/claims?text=n{number}", "tenant"))[0] == 200
    await served.get("/api/v1/fleet")
    assert rendered == ["admin"]


async def test_no_number_of_accounts_shuts_a_visitor_out_of_streams(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each account opens as many streams as one may, and together they use all streams."""
    monkeypatch.setattr(server, "STREAMS", 6)
    monkeypatch.setattr(server, "STREAMS_OF_A_USER", 3)
    for account in ("a", "b"):
        served.reviews.rights[f"system:serviceaccount:{account}:s"] = {"vgpuclaims in mine"}
    async with contextlib.AsyncExitStack() as stack:
        for account in "aaabbb":
            documents = await stack.enter_async_context(
                served.stream("/api/v1/claims", f"system:serviceaccount:{account}:s")
            )
            await anext(documents)
        documents = await stack.enter_async_context(served.stream("/api/v1/claims", "tenant"))
        assert (await anext(documents))["total"] == 1
        status, _ = await served.get(
            "/api/v1/claims", "system:serviceaccount:b:s", Accept="text/event-stream"
        )
        assert status == 429  # an account with the most gets no more


async def test_the_service_accounts_of_a_namespace_count_as_one_visitor(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STREAMS_OF_A_USER", 1)
    for name in ("one", "two"):
        served.reviews.rights[f"system:serviceaccount:ns:{name}"] = {"vgpuclaims in mine"}
    async with served.stream("/api/v1/claims", "system:serviceaccount:ns:one") as documents:
        await anext(documents)
        status, _ = await served.get(
            "/api/v1/claims", "system:serviceaccount:ns:two", Accept="text/event-stream"
        )
        assert status == 429


async def test_a_user_has_so_many_streams(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS_OF_A_USER", 1)
    async with served.stream("/api/v1/claims", "tenant") as documents:
        await anext(documents)
        status, found = await served.get(
            "/api/v1/claims", token="tenant", Accept="text/event-stream"
        )
        assert (status, found["error"]) == (
            429,
            "too many pages are open; close one and try again",
        )
        assert (await served.get("/api/v1/claims", Accept="application/json"))[0] == 200


async def test_a_connection_too_many_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.get("/api/v1/me")
    monkeypatch.setattr(server, "CONNECTIONS", 0)
    async with aiohttp.ClientSession() as another:
        with pytest.raises(aiohttp.ClientConnectionError):
            await another.get(served.url)


async def test_a_connection_that_asks_nothing_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 0.01)
    port = int(served.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        assert await reader.read() == b""
    except ConnectionResetError:
        pass  # the server may also abort the connection
    finally:
        writer.close()


async def test_a_pasted_pod_is_answered(served: Served) -> None:
    status, found = await served.ask(POD)
    assert (status, found["pods"][0]["node"]) == (200, "node-0")


async def test_behind_the_gate_volumes_are_judged_for_who_may_list_their_claims() -> None:
    with_volume = POD.replace("{containers", "{volumes: [{name: d, persistentVolumeClaim: "
                              "{claimName: data}}], containers")  # fmt: skip
    async with serving(a_mirror(config=GATE)) as page:
        _, found = await page.ask(with_volume)
        assert found["pods"][0]["notJudged"] == (
            'volumes are not judged: user "tenant" cannot list persistentvolumeclaims in namespace'
            ' "mine"'
        )
        page.reviews.rights = {
            "tenant": {"gpudevices", "vgpuclaims in mine", "persistentvolumeclaims in mine"}
        }
        page.clock.time += REFUSED_S + 1
        _, found = await page.ask(with_volume)
        (answer,) = found["pods"]
        assert answer["refused"] == "PersistentVolumeClaim data does not exist yet"
        assert answer["notJudged"] == ""


async def test_behind_no_gate_nobody_is_asked_about_volumes(served: Served) -> None:
    await served.ask(POD)
    assert not [asked for asked in served.reviews.asked if asked.startswith("persistent")]


async def test_a_pasted_text_is_bounded_and_refused_by_name(served: Served) -> None:
    assert await served.ask(b"#" * (LARGEST_TEXT + 1)) == (
        413,
        {"error": "the text is larger than 64 KiB"},
    )
    assert (await served.ask(b"\xff"))[0] == 400
    status, found = await served.ask("kind: Service")
    assert (status, found["error"].startswith("the text: no pods or claims")) == (422, True)
    assert (await served.ask(POD.replace("mine", "theirs")))[0] == 403
    assert (await served.ask(POD, token="forged"))[0] == 401


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/fleet", 403),
        ("/nodes/node-0", 403),
        ("/namespaces/mine", 200),
        ("/namespaces/theirs", 403),
        ("/claims/mine/a", 200),
        ("/claims/mine/none", 404),
        ("/claims/theirs/b", 403),
        ("/claims/mine/a?x=1", 400),
    ],
)
async def test_a_tenant_is_shown_the_last_day_of_his_own_claims_alone(
    served: Served, path: str, status: int
) -> None:
    assert (await served.get(f"/api/v1/history{path}", "tenant"))[0] == status


async def test_without_a_prometheus_the_last_day_is_unknown(served: Served) -> None:
    assert await served.get("/api/v1/history/fleet") == (
        200,
        {"problem": "a Prometheus is needed: set web.prometheus in the configuration"},
    )
    assert (await served.get("/api/v1/history/nodes/none"))[0] == 404
