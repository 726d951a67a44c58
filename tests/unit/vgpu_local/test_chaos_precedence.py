"""The campaign's rules about priorities and groups, on hand-made histories."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from builders import a_pod_group
from vgpu_local.apiserver.storage import WriteEvent
from vgpu_local.chaos.precedence import LATE_S, Precedence


class History:
    """Writes of pods, claims and events of the namespace default."""

    def __init__(self, *, hopeless: tuple[str, ...] = (), deleted: tuple[str, ...] = ()) -> None:
        self.time = 1000.0
        self.judge = Precedence("default", deleted, hopeless, clock=lambda: self.time)

    def pod(self, name: str, priority: int = 0, *, group: str = "", **metadata: Any) -> None:
        """Write a pod; `node` is where it is bound."""
        spec: dict[str, Any] = {"priority": priority, "nodeName": metadata.pop("node", "")}
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        self._write("pods", name, metadata, spec=spec)

    def evicted(self, name: str, priority: int = 0) -> None:
        self.pod(name, priority, node="n", deletionTimestamp="2026-01-01T00:00:00Z")

    def claim(self, pod: str) -> None:
        status = {"allocation": {"id": "1"}, "reservedFor": {"podUID": f"uid-of-{pod}"}}
        self._write("vgpuclaims.vgpu.dev", pod, {}, status=status)

    def group(self, least: int) -> None:
        wire = a_pod_group("g", least=least).to_wire()
        self._write("podgroups.scheduling.k8s.io", "g", {}, spec=wire["spec"])

    def preempting(self, pod: str) -> None:
        self._write("events", f"{pod}.1", {}, reason="Preempting", involvedObject={"name": pod})

    def _write(self, plural: str, name: str, metadata: dict[str, Any], **rest: Any) -> None:
        metadata = {"name": name, "namespace": "default", "uid": f"uid-of-{name}", **metadata}
        self.judge.saw(
            WriteEvent("MODIFIED", plural, 1, orjson.dumps({"metadata": metadata, **rest}))
        )


@pytest.mark.parametrize(("priority", "findings"), [(1, 0), (0, 1), (-1, 1)])
def test_a_victim_is_less_important_than_a_pod_that_waits(priority: int, findings: int) -> None:
    history = History()
    history.pod("victim", node="n")
    history.pod("waits", priority)
    history.evicted("victim")
    assert len(history.judge.findings) == findings
    assert history.judge.victims == 1


def test_who_waited_a_while_ago_or_fits_nowhere_is_no_reason_to_evict() -> None:
    history = History(hopeless=("hopeless",))
    history.pod("hopeless", 9)
    history.pod("served", 9)
    history.pod("served", 9, node="n")
    history.time += LATE_S + 1
    history.pod("victim", node="n")
    history.evicted("victim")
    assert len(history.judge.findings) == 1


def test_a_pod_that_its_user_deletes_is_no_victim() -> None:
    history = History(deleted=("mine",))
    history.pod("mine", node="n")
    history.evicted("mine")
    assert (history.judge.findings, history.judge.victims) == ([], 0)


def test_nobody_preempts_for_a_pod_that_fits_nowhere() -> None:
    history = History(hopeless=("hopeless",))
    for name in ("hopeless", "fits"):
        history.preempting(name)
    (finding,) = history.judge.findings
    assert "hopeless" in finding


def test_a_gang_starts_when_enough_of_its_pods_have_devices() -> None:
    for claims, findings in ((("g-0", "g-1"), 0), (("g-0",), 1)):
        history = History()
        history.group(2)
        for name in ("g-0", "g-1", "g-2"):
            history.pod(name, group="g")
        for name in claims:
            history.claim(name)
        history.pod("g-0", group="g", node="n")
        assert len(history.judge.findings) == findings
        assert history.judge.gangs == set()
        history.pod("g-1", group="g", node="n")
        assert history.judge.gangs == {"g"}
