"""Reports that the API server refuses, and which refusals are logged as errors."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.errors import Invalid, NotFound
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.state.node_view import NodeView

CLAIM = VGPUClaim.model_validate(
    {
        "metadata": {"namespace": "default", "name": "one", "uid": "u-1", "generation": 1},
        "spec": {"requests": [{"memory": "1Gi"}]},
        "status": {
            "allocation": {"nodeName": "here", "id": "00000000-0000-0000-0000-000000000001"},
            "conditions": [],
        },
    }
)


class Refusing:
    """An API server with a policy that refuses, and one claim or none."""

    def __init__(self, claim: VGPUClaim | None) -> None:
        self._claim = claim
        self.was_asked = asyncio.Event()

    async def apply(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise Invalid("the policy denied the request", status=422)

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.was_asked.set()
        if self._claim is None:
            raise NotFound("there is no such claim", status=404)
        return self._claim.model_dump(by_alias=True, exclude_none=True, mode="json")


async def levels(caplog: pytest.LogCaptureFixture, *, goes: bool) -> list[int]:
    """Return the log levels of a refused report, whether or not the claim leaves the node."""
    view = NodeView("here")
    view.claims.added(CLAIM)
    api: Any = Refusing(None if goes else CLAIM)
    reports = Reports(api, view)
    with caplog.at_level(logging.INFO, logger="vgpu_nodeagent.reporting.reports"):
        task = asyncio.create_task(reports.run())
        reports.prepared(CLAIM, "limits are in place", took_s=0.1)
        await api.was_asked.wait()  # nothing is awaited between that and the report
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return [record.levelno for record in caplog.records]


async def test_a_report_on_a_claim_that_was_released_meanwhile_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await levels(caplog, goes=True) == [logging.INFO]


async def test_a_refused_report_on_a_claim_of_ours_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await levels(caplog, goes=False) == [logging.ERROR]
