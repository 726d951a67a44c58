"""One pod from its admission to its end: the loop a kubelet runs for each pod."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vgpu_client.transport import Object
from vgpu_local.kubelet.admission import Admission
from vgpu_local.kubelet.holdings import AdmissionError
from vgpu_local.kubelet.pace import Pace
from vgpu_local.kubelet.pod_report import PodReport
from vgpu_local.kubelet.podspec import parse_pod
from vgpu_local.kubelet.process import ContainerProcess
from vgpu_local.kubelet.resource_claims import PrepareError, ResourceClaims
from vgpu_local.kubelet.runtime import Runtime, StartError
from vgpu_local.kubelet.status import (
    ContainerRecord,
    Running,
    Terminated,
    Waiting,
    initialized,
    phase_of,
    pod_status,
    refused_status,
)
from vgpu_local.podwriter import PodWriter, timestamp


class PodWorker:
    """A worker that runs one pod; call its methods on the kubelet's loop."""

    def __init__(
        self,
        pod: Object,
        *,
        admission: Admission,
        runtime: Runtime,
        claims: ResourceClaims | None,
        writer: PodWriter,
        pace: Pace,
        folder: Path,
    ) -> None:
        """Create a worker for a pod that is bound to this node and has not been started.

        Args:
            pod: The pod's object.
            admission: Allocates its devices.
            runtime: Starts its containers.
            claims: Prepares its ResourceClaims; None if nobody does.
            writer: Writes to the API server.
            pace: The waiting times.
            folder: The pod's folder, which is created once it is admitted.
        """
        self.pod = parse_pod(pod)
        self.active = True
        self.terminating = False
        self._admission = admission
        self._runtime = runtime
        self._claims = claims
        self._has_sandbox = False
        self._pace = pace
        self._report = PodReport(pod, writer, retry_s=pace.write_retry, status=self._status)
        self._folder = folder
        self._start_time = timestamp()
        self._refusal: Mapping[str, Any] | None = None
        first = Waiting("PodInitializing" if self.pod.init_containers else "ContainerCreating")
        self._inits = [
            ContainerRecord(c, Waiting("PodInitializing")) for c in self.pod.init_containers
        ]
        self._apps = [ContainerRecord(c, first) for c in self.pod.containers]
        self._processes: dict[str, ContainerProcess] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._remaking = False
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None

    # What the kubelet calls

    async def run(self) -> None:
        """Run the pod until it has ended by itself or by `terminate` or `kill`."""
        self._running = asyncio.create_task(self._live())
        with contextlib.suppress(asyncio.CancelledError):
            await self._running

    def update(self, raw: Object) -> bool:
        """Apply a newer version; return True if a kubelet must act (not for a change of status)."""
        self._report.raw = raw
        pod = parse_pod(raw)
        changed = pod != self.pod
        self.pod = pod
        if changed:
            for record in self._inits + self._apps:
                if record.failing:
                    record.not_before = 0.0
            self._wake.set()
        return changed

    async def terminate(self) -> None:
        """End the pod with its grace period, then remove it from the API server."""
        self.terminating = True
        await self._cease()
        for name in tuple(self._processes):
            await self._report.event("Normal", "Killing", f"Stopping container {name}")
        await self._stop_all(self.pod.grace_seconds)
        await self._unprepare()
        self.active = False
        await self._report.tell()
        await self._report.remove()

    async def kill(self, grace: float = 0.0) -> None:
        """End the pod, because its object is gone or the kubelet is stopping."""
        self.terminating = True
        self.active = False
        await self._cease()
        await self._stop_all(grace)
        shutil.rmtree(self._folder, ignore_errors=True)

    def devices_changed(self) -> None:
        """Update the pod's status, since the health of its devices may have changed."""
        self._report.changed()

    def crash(self) -> None:
        """Kill every container at once, as when the node goes down."""
        self._has_sandbox = False
        for process in tuple(self._processes.values()):
            process.kill()

    async def remake_sandbox(self) -> None:
        """End all containers, and start again with the init containers."""
        self._remaking = True
        self._has_sandbox = False
        await self._stop_all(0)
        for record in self._inits + self._apps:
            record.state, record.last = Waiting("PodInitializing"), None
            record.not_before, record.failing = 0.0, False
        self._remaking = False
        self._report.changed()
        self._wake.set()

    def process(self, container: str) -> ContainerProcess:
        """Return the running process of a container.

        Raises:
            LookupError: it is not running.
        """
        try:
            return self._processes[container]
        except KeyError:
            raise LookupError(f"container {container} of {self.pod.name} is not running") from None

    # The loop

    async def _live(self) -> None:
        try:
            await self._admission.admit(self.pod)
        except AdmissionError as error:
            await self._refuse(str(error))
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        report = asyncio.create_task(self._report.run(over=lambda: self._over))
        self._report.changed()
        try:
            while not self._over:
                self._wake.clear()
                due = await self._sync()
                self._report.changed()
                if not self._over:
                    await self._pause(due)
            await self._stop_all(self.pod.grace_seconds)  # the sidecars
            await self._unprepare()
            self.active = False
        finally:
            report.cancel()
            await asyncio.gather(report, return_exceptions=True)
        await self._report.tell()

    @property
    def _over(self) -> bool:
        return not self._remaking and phase_of(self.pod, self._inits, self._apps) in (
            "Succeeded",
            "Failed",
        )

    async def _pause(self, due: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._wake.wait()

    async def _sync(self) -> float | None:
        """Start the containers that should run; return the loop time of the next try, or None."""
        if self._remaking:
            return None
        if not self._has_sandbox and (again := await self._prepare()) is not None:
            return again
        for record in self._inits:
            await self._start_if_due(record)
            if not initialized([record]):
                return self._next_attempt()
        for record in self._apps:
            await self._start_if_due(record)
        return self._next_attempt()

    async def _prepare(self) -> float | None:
        """Prepare the claims for a new sandbox; return the loop time of the next try, or None."""
        if self._claims is not None:
            try:
                await self._claims.prepare(self.pod)
            except PrepareError as error:
                await self._report.event("Warning", "FailedPrepareDynamicResources", str(error))
                return self._loop.time() + self._pace.retry
        self._has_sandbox = True
        return None

    async def _unprepare(self) -> None:
        if self._claims is not None:
            await self._claims.unprepare(self.pod.uid)

    def _next_attempt(self) -> float | None:
        return min(
            (r.not_before for r in self._inits + self._apps if self._wanted(r) and r.not_before),
            default=None,
        )

    def _wanted(self, record: ContainerRecord) -> bool:
        if isinstance(record.state, Running):
            return False
        ended = record.state if isinstance(record.state, Terminated) else record.last
        if ended is None or record.container.restartable:
            return True
        if self.pod.restart_policy == "Never":
            return False
        is_app = record in self._apps
        return ended.exit_code != 0 or (is_app and self.pod.restart_policy == "Always")

    async def _start_if_due(self, record: ContainerRecord) -> None:
        if not self._wanted(record) or self._loop.time() < record.not_before:
            return
        name = record.container.name
        try:
            process = await self._runtime.start(self.pod, record.container)
        except StartError as error:
            self._set_waiting(record, Waiting(error.reason, str(error)))
            wait = self._pace.retry if record.failing else self._pace.first_retry
            record.not_before = self._loop.time() + wait
            record.failing = True
            await self._report.event("Warning", "Failed", f"Error: {error}")
            return
        if isinstance(record.state, Terminated):
            record.last = record.state
        if record.last is not None:
            record.restarts += 1
        record.failing, record.not_before = False, 0.0
        record.container_id = f"process://{secrets.token_hex(32)}"
        record.state = Running(timestamp())
        self._processes[name] = process
        self._watches[name] = asyncio.create_task(self._watch(record, process))
        self._report.changed()
        await self._report.event("Normal", "Started", f"Started container {name}")

    async def _watch(self, record: ContainerRecord, process: ContainerProcess) -> None:
        code = await process.wait()
        name = record.container.name
        started = record.state.started_at if isinstance(record.state, Running) else timestamp()
        record.state = Terminated(code, started, timestamp())
        del self._processes[name]
        if not self.terminating and self._wanted(record) and record.restarts:
            wait = min(
                self._pace.first_restart * 2 ** (record.restarts - 1), self._pace.last_restart
            )
            record.not_before = self._loop.time() + wait
            message = (
                f"back-off {wait:g}s restarting failed container={name} "
                f"pod={self.pod.name}_{self.pod.namespace}({self.pod.uid})"
            )
            self._set_waiting(record, Waiting("CrashLoopBackOff", message))
        self._report.changed()
        self._wake.set()

    @staticmethod
    def _set_waiting(record: ContainerRecord, waiting: Waiting) -> None:
        if isinstance(record.state, Terminated):
            record.last = record.state
        record.state = waiting

    # The end, and telling about it

    async def _cease(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _stop_all(self, grace: float) -> None:
        await asyncio.gather(*(p.stop(grace) for p in tuple(self._processes.values())))
        await asyncio.gather(*self._watches.values())

    async def _refuse(self, why: str) -> None:
        self.active = False
        reason = "UnexpectedAdmissionError"
        self._refusal = refused_status(reason, why, start_time=self._start_time)
        await self._report.event("Warning", reason, why)
        await self._report.tell()

    def _status(self, conditions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        if self._refusal is not None:
            return self._refusal
        return pod_status(
            self.pod,
            self._inits,
            self._apps,
            start_time=self._start_time,
            now=timestamp(),
            conditions=conditions,
            terminal=not self.active,
            devices=self._admission.devices_of(self.pod.uid),
        )
