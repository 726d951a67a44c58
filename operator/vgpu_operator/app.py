"""Assembles and runs the operator. This is the only module that knows all others.

Kopf is the frame: settings, login, liveness and an orderly shutdown. Work that Kopf is not made for
runs in tasks beside it: reflectors, the engine, the extender, the Lease. Kopf's startup and cleanup
handlers start and stop these tasks, because at shutdown Kopf cancels everything else in its event
loop. If one of the tasks ends, the process ends, because half an operator would decide wrongly or
not at all.

The admission webhooks run in a process of their own (`vgpu_operator.admission`), so that scheduling
load cannot delay them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import kopf
from prometheus_client import REGISTRY

from vgpu_api.config import ConfigFile
from vgpu_api.names import FIELD_MANAGER_OPERATOR
from vgpu_api.resources import (
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIMS,
    VGPU_CLAIMS,
)
from vgpu_client.api import Api
from vgpu_client.clock import Clock
from vgpu_client.lease import Elector, LeaseTimes
from vgpu_client.object_writer import ObjectWriter
from vgpu_client.recorder import Recorder
from vgpu_client.reflector import Reflector
from vgpu_client.reload import changed
from vgpu_operator import kopf_frame
from vgpu_operator.certificates.parts import extender_identity, keeper_of
from vgpu_operator.config import OperatorConfig
from vgpu_operator.controllers.controllers import Controllers
from vgpu_operator.dialects.pod_groups import pod_group_kinds
from vgpu_operator.engine.effector import Effector
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.events import Event
from vgpu_operator.engine.informers import (
    InSlices,
    follow_pod_groups,
    informers,
    kinds_of_mode,
    more_informers,
)
from vgpu_operator.engine.leader.fence import Fence
from vgpu_operator.engine.leader.leadership import Leadership
from vgpu_operator.engine.observability.claim_metrics import ClaimsCollector
from vgpu_operator.engine.state import State
from vgpu_operator.exposition import serve_metrics
from vgpu_operator.extender.binding import Binder
from vgpu_operator.extender.endpoint import Advertised, Endpoint
from vgpu_operator.extender.server import ExtenderServer
from vgpu_operator.garbage_collection import keep_passes_short
from vgpu_operator.ledger import Ledger
from vgpu_operator.metrics import EVENTS_DROPPED

logger = logging.getLogger(__name__)

_LAST = (VGPU_CLAIMS, PODS)
"""The kinds to list after all others."""


class Operator:
    """All parts of one replica.

    Args:
        api: The API server.
        leases: The same on a connection of its own, so that no renewal of the Lease waits behind a
            burst of writes.
        config: The operator's arguments.
    """

    def __init__(self, api: Api, leases: Api, config: OperatorConfig) -> None:
        self._config = config
        elector = Elector(
            leases,
            namespace=config.namespace,
            name=config.lease_name,
            identity=config.identity,
            times=LeaseTimes(
                duration_s=config.lease_duration_s,
                renew_s=config.lease_duration_s / 8,
                retry_s=config.lease_duration_s / 15,
                write_s=config.lease_duration_s / 5,
            ),
        )
        # Bound each write by the Lease: it lands while this replica leads, or never.
        api = api.within(elector)
        self._clock = clock = Clock(api)
        self._writer = ObjectWriter(api, budget=elector)
        self._recorder = Recorder(
            api, FIELD_MANAGER_OPERATOR, clock=clock, on_drop=EVENTS_DROPPED.inc
        )
        self._effector = Effector(
            api, self._writer, self._recorder, clock, observe=self._observe, leads=self.leads
        )
        cluster = config.cluster.config
        state = State(cluster, Ledger(config=cluster), lambda: str(uuid4()))
        state.agent_gone_s, state.evicts = config.agent_gone_s, config.evicts
        self.engine = Engine(state, self._effector, clock, self.leads)
        self._claim_metrics = ClaimsCollector(self.engine)
        self._source = source = InSlices(api, self.engine.slices)
        self._informers = informers(source, self._observe, cluster)
        self._informers += more_informers(source, self._observe, kinds_of_mode(cluster))
        of_preemption = {POD_DISRUPTION_BUDGETS} if cluster.scheduling.preemption.enabled else ()
        self._budgets = more_informers(source, self._observe, of_preemption)
        self._binder = Binder(api, self._writer, self.engine, unix=clock.unix)
        self._controllers = Controllers(config, self._recorder, keeper_of(api, config))
        self._identity = identity = extender_identity(api, config)
        tls = None if identity is None else identity.context
        self._extender = ExtenderServer(self.engine, self._binder, self.leads, config.extender, tls)
        self._answers = asyncio.Event()
        of = {each.resource: each for each in self._informers}
        self._fence = Fence(
            api=api,
            writer=self._writer,
            clock=clock,
            cache=state.cache,
            claims=of.pop(VGPU_CLAIMS),
            pods=of.pop(PODS),
            resource_claims=of.pop(RESOURCE_CLAIMS, None),
            others=list(of.values()),
            engine=self.engine,
        )
        self._leadership = Leadership(elector, self._informers, self)
        self._endpoint = _endpoint(api, config)
        self._linger_s = config.linger_s
        self._tasks: list[asyncio.Task[None]] = []

    async def close_fence(self, decider: str) -> int:
        """Make late writes of the previous leader fail, and return the number of claims written."""
        return await self._fence.close(decider)

    def begin(self) -> None:
        """Start making decisions."""
        self.engine.lead()

    async def follow(self) -> None:
        """Wait until every write and every Bind has an outcome, and drop all decisions.

        No write is sent any more, because the Lease leaves no time for it. Otherwise one that still
        waits would be sent when this replica leads again.
        """
        await self._binder.drain()
        await self._writer.drain()
        await self._effector.drain()
        self.engine.follow()

    def leads(self) -> bool:
        """Return True if this replica decides: it holds the Lease and its view is complete."""
        return self._leadership.leads()

    async def start(self, failed: Callable[[BaseException], None]) -> None:
        """Start all tasks. If a task fails, call `failed` with its error."""
        keep_passes_short()
        REGISTRY.register(self._claim_metrics)
        identity = self._identity
        work: list[Coroutine[Any, Any, Any]] = [
            *([] if identity is None else [identity.run()]),
            self._answer(),
            *(self._inform(informer) for informer in self._informers),
            *(informer.run() for informer in self._budgets),
            *(
                follow_pod_groups(self._source, self.engine, self._clock, kind)
                for kind in pod_group_kinds(self._config.cluster.config)
            ),
            self._recorder.run(),
            self.engine.run(),
            self._leadership.run(),
            serve_metrics(self._config, identity),
        ]
        for coroutine in work:
            task = asyncio.create_task(coroutine)
            task.add_done_callback(lambda done: _report(done, failed))
            self._tasks.append(task)

    async def stop(self) -> None:
        """Shut down: stop deciding, finish writes and calls, and release the Lease.

        The extender's socket closes last, because kube-scheduler calls this replica until the
        successor has taken over the Service. A refused call costs nothing, but a call to an address
        that is gone blocks kube-scheduler until `httpTimeout`.
        """
        led = self.leads()
        REGISTRY.unregister(self._claim_metrics)
        self._leadership.resign()
        # stop the engine only now, because it handles the outcomes of these writes
        await self._binder.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._effector.drain()
        await self._leadership.give_up()
        if led:
            await asyncio.sleep(self._linger_s)
        await self._extender.__aexit__(None, None, None)

    async def _inform(self, informer: Reflector[Any]) -> None:
        """Watch a kind. Pods and claims come after their nodes and devices.

        The pages of a first list are delivered as they arrive, and a pod on a node with unknown
        devices would not be counted as using them.
        """
        if informer.resource in _LAST:
            before = (each for each in self._informers if each.resource not in _LAST)
            await asyncio.gather(*(each.synced.wait() for each in before))
        await informer.run()

    async def _answer(self) -> None:
        """Listen once this replica could lead: its view is complete and it has a certificate.

        The extender's port is the readiness probe, also of a standby. So a rollout never stops a
        leader before its successor has listed the cluster.
        """
        await asyncio.gather(*(informer.synced.wait() for informer in self._informers))
        if self._identity is not None:
            await self._identity.ready.wait()
        await self._extender.__aenter__()
        self._answers.set()

    async def publish(self) -> None:
        """Publish the address that only the leader knows, and run the controllers."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controllers.run())
            if self._endpoint is not None:
                await self._answers.wait()
                tasks.create_task(self._endpoint.run())

    def _observe(self, event: Event) -> None:
        self.engine.observe(event)


def _endpoint(api: Api, config: OperatorConfig) -> Endpoint | None:
    """Return the task that directs kube-scheduler to the leader; None if that is done elsewhere."""
    if config.service is None or config.advertise is None:
        return None
    advertised = Advertised(
        config.namespace, config.service, config.advertise, config.extender.port
    )
    return Endpoint(api, advertised)


def _report(task: asyncio.Task[None], failed: Callable[[BaseException], None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        failed(error)


async def run(config: OperatorConfig) -> None:
    """Run the operator until it is stopped or fails.

    Raises:
        VgpuError: The login or a part of the operator failed.
    """
    failure: list[BaseException] = []
    stop = asyncio.Event()

    def failed(error: BaseException) -> None:
        logger.error("cannot continue, ending: %s", error, exc_info=error)
        failure.append(error)
        stop.set()

    async def end_with(source: ConfigFile) -> None:
        """Exit once there is a new configuration, so that the process restarts with it.

        A new configuration changes the meaning of pods and claims, so all of them must be read
        again. The process exits as at SIGTERM. Standbys exit at once; the leader continues with the
        old configuration until they have read the cluster again, because otherwise nobody could
        take over. All kubelets mount a change within a minute and a half.
        """
        await changed(source, config.log_level)
        if operator.leads():
            logger.info(
                "configuration: a new one is mounted; standbys restart with it first, this "
                "leader in %.0f s",
                config.standbys_first_s,
            )
            await asyncio.sleep(config.standbys_first_s)
        logger.info("configuration: a new one is mounted; ending to restart with it")
        stop.set()

    tasks: list[asyncio.Task[None]] = []
    registry = kopf.OperatorRegistry()
    async with (
        Api.connect(config.kubeconfig, config.context) as api,
        Api.connect(config.kubeconfig, config.context) as leases,
    ):
        operator = Operator(api, leases, config)

        @kopf.on.startup(registry=registry)
        async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
            kopf_frame.set_up(settings)
            await operator.start(failed)
            tasks.append(asyncio.create_task(end_with(config.cluster)))

        @kopf.on.cleanup(registry=registry)
        async def end(**_: Any) -> None:
            await operator.stop()
            for task in tasks:  # Kopf would wait 5 s for each remaining task
                task.cancel()
            stop.set()  # Kopf waits 5 s for its own task, which ends when this flag is set

        @kopf.on.probe(id="leading", registry=registry)
        async def leading(**_: Any) -> bool:
            return operator.leads()

        await kopf_frame.run(registry, config, stop=stop)
    if failure:
        raise failure[0]
