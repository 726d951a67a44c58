"""A user without a right is told which, in one line, and what to use instead."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_client.errors import Forbidden, NotFound
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.rights import INSTEAD_OF_DEVICES, lacking, require_agents


class Server:
    """An API server that reviews a user's own rights; None: it does not."""

    def __init__(self, *allowed: str) -> None:
        self.allowed: tuple[str, ...] | None = allowed

    async def create(self, _: Any, review: dict[str, Any]) -> dict[str, Any]:
        if self.allowed is None:
            raise NotFound("not served", status=404)
        asked = review["spec"]["resourceAttributes"]
        right = f"{asked['verb']} {asked['resource']}/{asked['subresource']}"
        return {"status": {"allowed": right in self.allowed}}


async def test_a_user_who_may_not_ask_agents_is_told_what_shows_the_use_of_a_pod() -> None:
    with pytest.raises(CannotAnswer, match="list pods in namespace vgpu-node"):
        await require_agents(Server())  # type: ignore[arg-type]
    with pytest.raises(CannotAnswer, match="may not create pods/exec in namespace vgpu-node"):
        await require_agents(Server("list pods/"))  # type: ignore[arg-type]


async def test_a_user_with_both_rights_asks_and_so_does_one_of_an_unknown_server() -> None:
    server = Server("list pods/", "create pods/exec")
    await require_agents(server)  # type: ignore[arg-type]
    server.allowed = None
    await require_agents(server)  # type: ignore[arg-type]


def test_a_refusal_keeps_the_servers_sentence() -> None:
    error = lacking(Forbidden("gpudevices is forbidden", status=403), INSTEAD_OF_DEVICES)
    assert str(error).startswith("gpudevices is forbidden; the ClusterRole vgpu-devices-view")
