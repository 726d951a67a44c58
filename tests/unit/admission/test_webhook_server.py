"""The webhooks' server: the paths it knows, the size that it reads, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from vgpu_local.ports import free_ports
from vgpu_operator.admission import reviews
from vgpu_operator.admission.kopf_handlers import PATHS
from vgpu_operator.admission.server import Webhooks
from vgpu_operator.certificates.identity import Identity, InFiles
from vgpu_operator.certificates.issuing import Subject, issue, new_authority
from vgpu_operator.config import Address, Tls

REVIEW = {"request": {"uid": "r", "object": {"metadata": {"name": "a", "uid": "u"}}}}


class Served:
    """A running server, and the reviews that reached the place of Kopf."""

    def __init__(self, port: int) -> None:
        self.reviews: list[Any] = []
        self.beside_kopf: list[Any] = []
        self.may_end = asyncio.Event()
        self.drains = asyncio.Event()
        self.task: asyncio.Future[None] = asyncio.Future()
        self.url = f"https://127.0.0.1:{port}"
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False))

    async def review(self, review: Any, *, webhook: str | None = None, **_: Any) -> Any:
        self.reviews.append(review)
        return {"response": {"uid": "r", "allowed": True}}

    async def beside(self, review: Any) -> Any:
        self.beside_kopf.append(review)
        return {"response": {"uid": review["request"]["uid"], "allowed": False}}

    async def drain(self, _: float) -> None:
        self.drains.set()
        await self.may_end.wait()

    async def post(self, path: str, **body: Any) -> tuple[int, str | None]:
        """Return the status, and the fate of the connection."""
        async with self.session.post(f"{self.url}/{path}", **body) as answer:
            await answer.read()
            return answer.status, answer.headers.get("Connection")

    async def readyz(self) -> int:
        async with self.session.get(f"{self.url}/readyz") as answer:
            return answer.status


@pytest.fixture
async def identity(tmp_path: Path) -> AsyncIterator[Identity]:
    now, day = datetime.now(UTC), timedelta(days=1)
    pair = issue(
        new_authority(now=now, life=9 * day), Subject("w", ("localhost",)), now=now, life=day
    )
    (tmp_path / "c").write_bytes(pair.certificate)
    (tmp_path / "k").write_bytes(pair.key)
    files = InFiles(Tls(tmp_path / "c", tmp_path / "k"))
    found = Identity("test-webhook", files, verifies_clients=False)
    task = asyncio.create_task(found.run())
    await found.ready.wait()
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def served(identity: Identity) -> AsyncIterator[Served]:
    (port,) = free_ports(1)
    found = Served(port)
    server = Webhooks(
        Address("127.0.0.1", port),
        identity,
        paths=["one"],
        answers=dict.fromkeys(("beside", "mutate-pods", "warn-pods"), found.beside),
        drain_s=5,
        sleep=found.drain,
    )
    listens = asyncio.Event()

    async def serve() -> None:
        async for _ in server(found.review):
            listens.set()

    found.task = asyncio.create_task(serve())
    await listens.wait()
    yield found
    await found.session.close()
    found.may_end.set()
    found.task.cancel()
    await asyncio.gather(found.task, return_exceptions=True)


async def test_a_review_is_passed_on_and_its_connection_is_kept(served: Served) -> None:
    assert await served.post("one", json=REVIEW) == (200, None)
    assert len(served.reviews) == 1


async def test_a_path_with_an_answer_of_its_own_never_reaches_kopf(served: Served) -> None:
    assert await served.post("beside", json=REVIEW) == (200, None)
    assert served.reviews == []


async def test_reviews_lose_what_kopf_would_keep_or_copy_of_their_objects_in_vain(
    served: Served,
) -> None:
    metadata = {"uid": "u", "managedFields": [{"manager": "kubectl"}]}
    update = {"object": {"metadata": metadata}, "oldObject": {"metadata": metadata}}
    await served.post("one", json={"request": {"uid": "r", **update}})
    (review,) = served.reviews
    assert review == {
        "request": {"uid": "r", "object": {"metadata": {}}, "oldObject": {"metadata": {}}}
    }


async def test_a_path_that_nobody_registered_admits_nothing(served: Served) -> None:
    """Kopf runs no handler for an unknown id, and answers that all is well."""
    assert (await served.post("two", json=REVIEW))[0] == 404
    assert served.reviews == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"request": []}', '{"request": null}'])
async def test_what_is_no_review_is_refused_by_name(served: Served, text: str) -> None:
    assert (await served.post("one", data=text))[0] == 400
    assert served.reviews == []


async def test_an_update_of_the_largest_object_that_etcd_takes_is_read(served: Served) -> None:
    large = {"metadata": {"annotations": {"a": "x" * (3 << 19)}}}
    review = {"request": {"uid": "r", "object": large, "oldObject": large}}
    assert (await served.post("one", data=BytesIO(json.dumps(review).encode())))[0] == 200


def a_large_review() -> BytesIO:
    """Return the bytes as the API server writes them: Go keeps the order of its fields."""
    pod = {"metadata": {"annotations": {"a": "x" * (256 << 10)}}}
    kind = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    uid = "705ab4f5-6393-11e8-b7cc-42010a800002"
    return BytesIO(json.dumps({**kind, "request": {"uid": uid, "object": pod}}).encode())


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("mutate-pods", False), ("warn-pods", True)],
)
async def test_a_pod_larger_than_any_real_one_is_answered_without_being_read(
    served: Served, path: str, allowed: bool
) -> None:
    """A response must have the UID of its request, or the API server takes it for a failure."""
    async with served.session.post(f"{served.url}/{path}", data=a_large_review()) as answer:
        assert answer.status == 200
        review = await answer.json()
    assert (review["kind"], review["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response = review["response"]
    assert (response["uid"], response["allowed"]) == (
        "705ab4f5-6393-11e8-b7cc-42010a800002",
        allowed,
    )
    (said,) = response["warnings"] if allowed else [response["status"]["message"]]
    assert "may not be more than 262144 bytes" in said
    assert served.beside_kopf == []


async def test_a_large_review_that_does_not_begin_as_the_api_servers_do_is_refused(
    served: Served,
) -> None:
    sent = BytesIO(b'{"request": {"object": "' + b"x" * (256 << 10) + b'", "uid": "u"}}')
    assert (await served.post("mutate-pods", data=sent))[0] == 413


async def test_a_server_that_ends_answers_until_its_callers_have_moved_on(served: Served) -> None:
    assert await served.readyz() == 200
    served.task.cancel()
    await served.drains.wait()
    assert await served.readyz() == 503
    assert await served.post("one", json=REVIEW) == (200, "close")
    served.may_end.set()
    await asyncio.gather(served.task, return_exceptions=True)
    with pytest.raises(aiohttp.ClientConnectorError):
        await served.post("one", json=REVIEW)


def test_the_manifests_send_reviews_to_the_paths_that_have_a_handler() -> None:
    folder = Path(__file__).parents[3] / "manifests" / "base" / "webhook"
    configurations = yaml.safe_load_all((folder / "configurations.yaml").read_text())
    sent = [
        hook["clientConfig"]["service"]["path"].removeprefix("/")
        for configuration in configurations
        for hook in configuration["webhooks"]
    ]
    assert sorted(sent) == sorted([*PATHS, *reviews.PATHS])
