"""The agent as a whole: makes the parts, starts them in the right order, ends them together.

The only module that knows all others. A part that fails ends the agent, and its supervisor starts
it again: everything that matters is on disk or found by looking.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime

from vgpu_api.config import NodeSettings
from vgpu_api.resources import NODES
from vgpu_client.api import Api
from vgpu_client.errors import ClientError
from vgpu_client.listen import listen
from vgpu_client.metrics_server import MetricsAccess, MetricsServer
from vgpu_client.own_certificate import own_certificate
from vgpu_client.scrapers import Scrapers
from vgpu_nodeagent.config import AgentConfig
from vgpu_nodeagent.discovery.drivers.base import Driver
from vgpu_nodeagent.discovery.drivers.numa import HostNuma
from vgpu_nodeagent.discovery.health import Health
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.enforcement.allocations import Allocations, HostFolders
from vgpu_nodeagent.enforcement.backends import backends
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.driver_files import driver_source
from vgpu_nodeagent.enforcement.library import stage_library
from vgpu_nodeagent.enforcement.page import PageContent
from vgpu_nodeagent.enforcement.priority_throttle import PriorityThrottle
from vgpu_nodeagent.enforcement.toolkit import Exposure, exposure
from vgpu_nodeagent.enforcement.usage_folders import folders_on
from vgpu_nodeagent.enforcement.watchdog import Signals, Watchdog
from vgpu_nodeagent.errors import CheckpointDamaged, PageDamaged
from vgpu_nodeagent.kubelet.audit_socket import SOCKET, AuditSocket
from vgpu_nodeagent.kubelet.kubelet_checkpoint import read_kubelet_checkpoint
from vgpu_nodeagent.kubelet.local_node import LocalNode
from vgpu_nodeagent.kubelet.pod_resources import PodResources
from vgpu_nodeagent.kubelet.prestart import PreStart
from vgpu_nodeagent.kubelet.rebuild import rebuild, recovered
from vgpu_nodeagent.kubelet.registration import Registration
from vgpu_nodeagent.kubelet.releases import Releases
from vgpu_nodeagent.kubelet.resizing import Resizing
from vgpu_nodeagent.kubelet.server import DevicePlugin, PluginServer
from vgpu_nodeagent.kubelet.slot_offer import free_slots, offer
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.reporting.exposition import UsageCollector
from vgpu_nodeagent.reporting.hami_register import HamiRegister
from vgpu_nodeagent.reporting.heartbeat import Heartbeat
from vgpu_nodeagent.reporting.liveness import Liveness, ProbeServer
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.publisher import Publisher
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.reporting.usage import PERIOD_S, UsageReader
from vgpu_nodeagent.reporting.violations import Violations
from vgpu_nodeagent.state.checkpoint import Checkpoint
from vgpu_nodeagent.state.instances import Instances
from vgpu_nodeagent.state.node_pods import NodePods
from vgpu_nodeagent.state.node_view import NodeView
from vgpu_nodeagent.state.serving_lock import ServingLock

logger = logging.getLogger(__name__)

_LABELS_AGAIN_S = 2.0


class Agent:
    """One node's agent.

    Args:
        config: Its settings.
        api: The API server.
        driver: The devices' driver.

    Raises:
        OSError: The library cannot be read, the state folder not be written, or nothing be mounted
            in it where that is wanted.
    """

    def __init__(self, config: AgentConfig, api: Api, driver: Driver) -> None:
        self._config = config
        self._api = api
        self._driver = driver
        self._metrics = Metrics()
        self._liveness = Liveness(self)
        self._heartbeat = Heartbeat(api, config.node_name)
        self._serving = ServingLock(config.state_dir)
        self._health = Health()
        self._view = NodeView(config.node_name)
        self._pods = NodePods(api, config.node_name)
        checkpoint = Checkpoint(config.state_dir / "slots.json")
        self._inventory = Inventory(driver, config.cluster.nvidia, checkpoint)
        config.state_dir.mkdir(parents=True, exist_ok=True)
        usage_folders = folders_on(config.usage_regions)
        usage_folders.verify(config.state_dir)
        instances = Instances(driver, checkpoint, self._inventory)
        self._node = LocalNode(
            name=config.node_name,
            resource=config.resource,
            view=self._view,
            inventory=self._inventory,
            checkpoint=checkpoint,
            backends=backends(config.limit_backend, driver, instances, config.host_root),
            instances=instances,
            allocations=Allocations(
                config.state_dir / "slots",
                SpecFolder(config.cdi_dir),
                library=stage_library(config.library, config.state_dir / "lib"),
                driver=driver_source(config.driver_roots, config.host_root, config.driver_files),
                usage=usage_folders,
                host=HostFolders(dev=config.host_root / "dev"),
            ),
            pod_resources=PodResources(config.pod_resources_socket, resource=config.resource),
            kubelet_checkpoint=config.kubelet_checkpoint,
            kubelet_pods=config.kubelet_pods,
            host_numa=HostNuma(config.sysfs_dir),
        )
        self._usage = UsageReader(driver, checkpoint, self._node.allocations)
        self._exposed = UsageCollector(
            config.node_name,
            self._inventory,
            hami=config.cluster.views.hami_metrics,
        )
        self._metrics.registry.register(self._exposed)
        self._reports = Reports(api, self._view)
        violations = Violations(config.node_name, self._view, self._reports, self._metrics)
        self._watchdog = Watchdog(
            driver,
            checkpoint,
            self._node.allocations,
            violations,
            signals=Signals(config.on_violation, config.on_unclaimed),
        )
        self._priority_throttle = PriorityThrottle(driver, checkpoint, self._node.allocations)
        self._waiting = WaitingPods(self._view, self._reports)
        self._releases = Releases(
            self._node,
            reports=self._reports,
            bound=self._pods,
            freed=self._room_was_made,
            unused_allocation_s=config.unused_allocation_s,
        )
        self._audit = AuditSocket(self._node, config.state_dir / SOCKET, reading=self._exposed)
        self._resizing = Resizing(self._node, reports=self._reports)
        self._plugin = DevicePlugin(
            PreStart(
                self._node,
                reports=self._reports,
                waiting=self._waiting,
                releases=self._releases,
            ),
            offer=self._offer,
            metrics=self._metrics,
        )
        self._registration = Registration(
            PluginServer(self._plugin, config.plugin_socket),
            self._node,
            kubelet=config.kubelet_socket,
            metrics=self._metrics,
        )
        self._publisher = Publisher(
            api,
            node=config.node_name,
            view=self._view,
            inventory=self._inventory,
            health=self._health,
            register=HamiRegister(api, node=config.node_name)
            if config.cluster.views.hami_node_register
            else None,
            unclaimed=violations.unclaimed,
            config_fault=config.config_fault,
            open_=_exposure(config),
        )
        violations.on_strangers(self._publisher.wake)
        self._inventory.on_change(self._devices_changed)

    @property
    def registered(self) -> asyncio.Event:
        """Set once the plugin is registered with the kubelet."""
        return self._registration.registered

    async def run(self) -> None:
        """Serve the node until cancelled."""
        probes = None
        if self._config.health_port:
            probes = ProbeServer(self._liveness, self._config.health_port)
        try:
            async with self._metrics_server(), asyncio.TaskGroup() as parts:
                parts.create_task(self._liveness.run())
                for reflector in self._view.reflectors(self._api, self._pods):
                    parts.create_task(reflector.run())
                self._inventory.configure(await self._capacities_here())
                await self._inventory.refresh()
                await self._serving.acquire()
                await self._inventory.refresh()  # it may have been a long wait
                await self._load()
                if self._node.checkpoint.state.claim_instances:
                    await self._inventory.refresh()  # ours apart from others
                self._review_health()
                parts.create_task(self._heartbeat.run())
                parts.create_task(self._reports.run())
                parts.create_task(self._publisher.run())
                parts.create_task(self._releases.run())
                parts.create_task(self._resizing.run())
                parts.create_task(self._registration.run())
                parts.create_task(self._follow_registration())
                parts.create_task(self._audit.run())
                parts.create_task(self._look_at_devices())
                parts.create_task(self._hear_events())
                parts.create_task(self._measure())
                parts.create_task(self._watchdog.run())
                parts.create_task(self._priority_throttle.run())
        finally:
            await self._releases.close()
            self._serving.release()  # nothing of ours changes the node's state any more
            await self._reports.close()
            self._driver.close()
            if probes is not None:
                probes.close()

    def _metrics_server(self) -> AbstractAsyncContextManager[object]:
        config = self._config
        if not config.metrics_port:
            return nullcontext()
        is_open = config.metrics_access is MetricsAccess.OPEN
        return MetricsServer(
            self._metrics.registry,
            listen("", config.metrics_port),
            scrapers=None if is_open else Scrapers(self._api),
            tls=None if is_open else own_certificate(f"vgpu-nodeagent.{config.node_name}"),
        )

    def unready(self) -> str:
        """Why this agent is not ready, for the kubelet and for a rollout; empty when it is."""
        if self._config.config_fault:
            return f"the configuration is not in force: {self._config.config_fault}"
        if not self._serving.is_held:
            # Ready to take over: only then is the agent before us ended.
            return "" if self._view.is_synced else "pods and claims of the node are not read yet"
        return "" if self._registration.registered.is_set() else "not registered with the kubelet"

    async def _load(self) -> None:
        """Take up where the agent before us ended."""
        checkpoint = self._node.checkpoint
        try:
            found = checkpoint.load()
        except CheckpointDamaged as error:
            aside = checkpoint.set_aside(datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f"))
            logger.error("%s; set aside as %s, rebuilding from other records", error, aside.name)
            found = False
        if not found:
            await self._rebuild()
        for leftover in self._node.allocations.on_disk() - set(checkpoint.state.slot_allocations):
            logger.info("closing allocation %s: nobody holds it", leftover)
            self._node.allocations.close(leftover)

    async def _rebuild(self) -> None:
        """Make the state anew from the kubelet's, the API server's and the pages' word."""
        entries = read_kubelet_checkpoint(
            self._config.kubelet_checkpoint, resource=self._config.resource
        )
        pages = {name: self._page(name) for name in self._node.allocations.on_disk()}
        if not entries and not pages:
            return
        await self._view.wait_synced()
        state = rebuild(
            entries=entries,
            claims=self._view.claims.objects.values(),
            pages=pages,
            capacities=self._inventory.capacities(),
            now=time.time(),
        )
        devices = self._inventory.devices
        static = frozenset(filter(self._inventory.is_static, devices))
        self._node.checkpoint.commit(recovered(state, pages, devices, static=static))
        logger.warning(
            "rebuilt %d allocations of %d claims",
            len(state.slot_allocations),
            len(state.claim_allocations),
        )

    def _page(self, name: str) -> PageContent | None:
        try:
            return self._node.allocations.content(name)
        except PageDamaged as error:
            logger.error("%s", error)
            return None

    def _offer(self) -> Sequence[tuple[str, bool]]:
        capacities = self._inventory.capacities()
        state = self._node.checkpoint.state
        usable = sum(
            device.allocatable.slots for uuid, device in capacities.items() if self._is_usable(uuid)
        )
        in_use = state.slots_in_use()
        lost = state.slots_on(frozenset(filter(self._is_lost, state.used())))
        self._metrics.slots.labels("used").set(len(in_use))
        self._metrics.slots.labels("free").set(free_slots(usable=usable, in_use=in_use, lost=lost))
        return offer(
            total=sum(device.allocatable.slots for device in capacities.values()),
            usable=usable,
            in_use=in_use,
            lost=lost,
            forgotten=self._registration.forgotten.slots,
        )

    def _is_lost(self, uuid: str) -> bool:
        """Whether a device cannot be relied on; while the driver is away nothing is known."""
        return self._inventory.driver_error is None and not self._is_usable(uuid)

    def _is_usable(self, uuid: str) -> bool:
        return self._inventory.is_present(uuid) and self._health.problem(uuid) is None

    def _devices_changed(self) -> None:
        for uuid, capacities in self._inventory.capacities().items():
            self._metrics.device(
                self._config.node_name,
                self._inventory.devices[uuid],
                capacities,
                healthy=self._is_usable(uuid),
            )
        self._plugin.offer_changed()

    def _room_was_made(self) -> None:
        self._plugin.offer_changed()
        self._waiting.room_was_made()

    async def _capacities_here(self) -> NodeSettings:
        """What the configuration has for this node; waits for its labels where they decide.

        Going on without them would show, and give away, what another node has.
        """
        cluster, name = self._config.cluster, self._config.node_name
        labels: dict[str, str] = {}
        while any(entry.selector for entry in cluster.nodes):
            try:
                node = await self._api.get(NODES, name)
            except ClientError as error:
                logger.warning("labels of node %s: %s; trying again", name, error)
                await asyncio.sleep(_LABELS_AGAIN_S)
                continue
            labels = node["metadata"].get("labels") or {}
            break
        return cluster.on_node(name, labels)

    async def _look_at_devices(self) -> None:
        while True:
            await self._inventory.look_again()
            self._review_health()

    def _review_health(self) -> None:
        if self._health.review(self._inventory.present, now=time.monotonic()):
            self._health_changed()

    async def _hear_events(self) -> None:
        while True:
            event = await self._driver.next_event()
            logger.warning(
                "GPU %s: %s (%s)", event.uuid or "unknown", event.message, event.severity
            )
            if self._health.note(event, devices=self._inventory.devices, now=time.monotonic()):
                self._health_changed()
                self._inventory.look_soon()  # NVML may report by now what the device needs

    async def _follow_registration(self) -> None:
        while True:
            self._publisher.plugin_problem = await self._registration.problem_changed()
            self._publisher.wake()

    def _health_changed(self) -> None:
        self._devices_changed()
        self._publisher.wake()

    async def _measure(self) -> None:
        while True:
            usage = await self._usage.read()
            self._exposed.usage = usage
            for uuid, reading in usage.devices.items():
                self._metrics.usage(self._config.node_name, uuid, reading)
            await asyncio.sleep(PERIOD_S)


def _exposure(config: AgentConfig) -> Exposure | None:
    """What NVIDIA's container toolkit leaves open on this host; also logged."""
    found = exposure(config.host_root)
    if found is not None:
        logger.warning("%s: %s", found.reason, found.message)
    return found
