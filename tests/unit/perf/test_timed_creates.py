"""The benches' loads: each object's time ends when the watch shows it done, refusals count too."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from perf.cluster_bench.load import LABEL, a_pod
from perf.cluster_bench.timed import TimedCreates, Times
from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.reflector import Scope
from vgpu_client.transport import Object
from vgpu_local.apiserver import ApiServer

pytestmark = pytest.mark.scale


async def timed(
    folder: Path, pods: list[Object], *, limit_s: float = 20.0, rate: float | None = None
) -> Times:
    """Return the times of pods, which are done at once unless their name begins with never."""
    with ApiServer() as server:
        async with Api.connect(str(server.kubeconfig(folder / "kubeconfig"))) as api:
            creates = TimedCreates(
                api,
                PODS,
                pods,
                is_done=lambda pod: not pod["metadata"]["name"].startswith("never"),
                scope=Scope(label_selector=LABEL),
                rate=rate,
            )
            return await creates.run(limit_s=limit_s)


@pytest.fixture(autouse=True)
def begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))


async def test_every_object_has_a_time_of_its_create_and_a_later_one_of_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = await timed(tmp_path, [a_pod("r", n, with_devices=False) for n in range(40)])
    assert set(times.sent) == set(times.bound) == set(range(40))
    assert all(times.sent[n] <= times.bound[n] for n in times.sent)
    assert times.refused == []
    assert capsys.readouterr().out == "ready\n"


async def test_at_a_rate_no_create_is_sent_before_its_turn(tmp_path: Path) -> None:
    times = await timed(tmp_path, [a_pod("r", n, with_devices=False) for n in range(5)], rate=20.0)
    assert all(times.sent[n] >= n / 20.0 for n in range(5))


async def test_a_create_that_is_refused_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    pods = [a_pod("r", 0, with_devices=False)] * 2  # the second has the name of the first
    times = await timed(tmp_path, pods)
    assert len(times.bound) == 1
    (refused,) = times.refused
    assert "AlreadyExists" in refused


async def test_what_is_not_done_when_the_limit_passes_has_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [a_pod("r", 0, with_devices=False), a_pod("never", 1, with_devices=False)]
    times = await timed(tmp_path, pods, limit_s=1.0)
    assert set(times.sent) == {0, 1}
    assert set(times.bound) == {0}
    assert "1 of 2 done" in capsys.readouterr().err
