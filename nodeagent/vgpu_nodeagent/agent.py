"""The agent as a whole: creates its parts, starts them in order, and ends them together.

This is the only module that knows all others. A part that fails ends the agent, and the kubelet
restarts it: everything that matters is on disk or can be read again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

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
from vgpu_nodeagent.draplugin.plugin import DRAPlugin
from vgpu_nodeagent.draplugin.preparation import Preparation
from vgpu_nodeagent.draplugin.registration import PluginRegistration, PluginSockets
from vgpu_nodeagent.draplugin.slices import SlicePublisher
from vgpu_nodeagent.enforcement.allocations import Allocations, HostFolders
from vgpu_nodeagent.enforcement.backends import backends
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.driver_files import driver_source
from vgpu_nodeagent.enforcement.library import stage_library
from vgpu_nodeagent.enforcement.priority_throttle import PriorityThrottle
from vgpu_nodeagent.enforcement.selinux import label_state
from vgpu_nodeagent.enforcement.toolkit import Exposure, exposure
from vgpu_nodeagent.enforcement.usage_folders import folders_on
from vgpu_nodeagent.enforcement.watchdog import Signals, Watchdog
from vgpu_nodeagent.events import Event, EventObserver, Events, InventoryChanged
from vgpu_nodeagent.kubelet.forgotten_slots import ForgottenSlots
from vgpu_nodeagent.kubelet.pod_resources import PodResources
from vgpu_nodeagent.kubelet.records import KubeletRecords
from vgpu_nodeagent.kubelet.registration import Registration
from vgpu_nodeagent.kubelet.server import DevicePlugin, PluginServer
from vgpu_nodeagent.kubelet.slot_offer import SlotOffer
from vgpu_nodeagent.kubelet.waiting import WaitingPods
from vgpu_nodeagent.lifecycle.audit_socket import SOCKET, AuditSocket
from vgpu_nodeagent.lifecycle.local_node import LocalNode
from vgpu_nodeagent.lifecycle.prestart import PreStart
from vgpu_nodeagent.lifecycle.recovery import load_record
from vgpu_nodeagent.lifecycle.releases import Releases
from vgpu_nodeagent.lifecycle.resizing import Resizing
from vgpu_nodeagent.reporting.exposition import UsageCollector
from vgpu_nodeagent.reporting.hami_register import HamiRegister
from vgpu_nodeagent.reporting.liveness import Liveness, ProbeServer
from vgpu_nodeagent.reporting.metrics import Metrics
from vgpu_nodeagent.reporting.node_devices import NodeDevices
from vgpu_nodeagent.reporting.publisher import Publisher
from vgpu_nodeagent.reporting.reports import Reports
from vgpu_nodeagent.reporting.usage import PERIOD_S, UsageReader
from vgpu_nodeagent.reporting.violations import Violations
from vgpu_nodeagent.state.checkpoint import Checkpoint
from vgpu_nodeagent.state.claim_reads import ClaimReads
from vgpu_nodeagent.state.device_reads import DeviceReads
from vgpu_nodeagent.state.instances import Instances
from vgpu_nodeagent.state.node_pods import NodePods
from vgpu_nodeagent.state.node_view import NodeView
from vgpu_nodeagent.state.serving_lock import ServingLock

logger = logging.getLogger(__name__)

_LABELS_AGAIN_S = 2.0
_SERVER_LOST_S = 20.0
"""Longer than a restart of the API server: then all agents would be unready at once."""


class Agent:
    """The agent of one node.

    Args:
        config: Its settings.
        api: The API server.
        driver: The driver of the devices.

    Raises:
        OSError: The library cannot be read, the state folder cannot be written, or usage regions
            cannot be mounted in it.
    """

    def __init__(self, config: AgentConfig, api: Api, driver: Driver) -> None:
        self._config = config
        self._api = api
        self._driver = driver
        self._events = events = Events()
        self._metrics = metrics = Metrics()
        self._liveness = Liveness(self)
        self._serving = ServingLock(config.state_dir)
        self._node = node = _local_node(config, api, driver, events)
        self._view, self._inventory = node.view, node.inventory
        self._pods = NodePods(api, config.node_name)
        self._device_reads = DeviceReads(api, node.view)
        self._devices = devices = NodeDevices(
            node.inventory, Health(), config.config_fault, _exposure(config)
        )
        self._reports = reports = Reports(api, node.view)
        self._usage = UsageReader(driver, node.checkpoint, node.allocations)
        self._exposed = UsageCollector(
            config.node_name, node.inventory, hami=config.cluster.views.hami_metrics
        )
        metrics.registry.register(self._exposed)
        self._watchdog = Watchdog(
            driver,
            node.checkpoint,
            node.allocations,
            Violations(node.view, devices, reports, metrics, events),
            signals=Signals(config.on_violation, config.on_unclaimed),
        )
        self._throttle = PriorityThrottle(driver, node.checkpoint, node.allocations)
        self._waiting = WaitingPods(node.view, reports)
        unused_s = config.unused_allocation_s
        self._releases = Releases(
            node, reports=reports, bound=self._pods, unused_allocation_s=unused_s
        )
        self._audit = AuditSocket(node, config.state_dir / SOCKET, reading=self._exposed)
        self._resizing = Resizing(node, reports=reports)
        self._publisher = _publisher(config, api, node.view, devices)
        self._plugin, self._registration = self._device_plugin()
        self._preparation, self._dra_plugin, self._dra_registration = self._dra_driver()
        self._slices = SlicePublisher(api, config.node_name, devices)

    @property
    def registered(self) -> asyncio.Event:
        """Set once the plugin is registered with the kubelet."""
        return self._registration.registered

    async def run(self) -> None:
        """Serve the node until cancelled."""
        # Probes and metrics first: an agent that waits to take over must look alive, too.
        probes = None
        if self._config.health_port:
            probes = ProbeServer(self._liveness, self._config.health_port)
        try:
            async with self._metrics_server(), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._liveness.run())
                tasks.create_task(self._apply_events())
                tasks.create_task(self._view.reflector(self._pods).run())
                tasks.create_task(self._node.claims.run())
                tasks.create_task(self._device_reads.run())
                if self._config.dra:
                    tasks.create_task(self._register_driver())
                # Pods, claims and devices are read before the lock is taken, so that the node is
                # without an agent only for a moment.
                self._inventory.configure(await self._capacities_here())
                await self._inventory.refresh()
                await self._serving.acquire()
                await self._inventory.refresh()  # devices may have changed during the wait
                await self._load()
                if self._node.checkpoint.state.claim_instances:
                    await self._inventory.refresh()  # only now are the agent's own instances known
                self._review_health()
                self._dra_plugin.serve()
                if self._config.dra:
                    self._dra_registration.remove_left_behind()
                for serving in self._parts():
                    tasks.create_task(serving)
        finally:
            # A sweep in progress would write the state that the next agent has loaded by then.
            await self._releases.close()
            self._serving.release()
            await self._reports.close()
            self._driver.close()
            if probes is not None:
                probes.close()

    def _parts(self) -> Iterable[Coroutine[None, None, None]]:
        """Return what runs while this agent serves the node."""
        return (
            self._reports.run(),
            self._publisher.run(),
            self._releases.run(),
            self._resizing.run(),
            self._registration.run(),
            self._follow_registration(),
            self._audit.run(),
            self._look_at_devices(),
            self._hear_events(),
            self._measure(),
            self._watchdog.run(),
            self._throttle.run(),
            self._preparation.run(),
            *([self._slices.run()] if self._config.resource_slices else []),
        )

    async def _apply_events(self) -> None:
        observers: Sequence[EventObserver] = (
            self._node.claims,
            self._device_reads,
            self._waiting,
            self._releases,
            self._resizing,
            self._publisher,
            self._plugin,
            self._preparation,
            self._dra_plugin,
            self._slices,
            self,
        )
        # No order among the parts matters: none reads what another one does with an event.
        while True:
            for event in await self._events.take():
                for observer in observers:
                    observer.observe(event)

    def observe(self, event: Event) -> None:
        """Show the devices' capacities and health as metrics."""
        # Gauges change with the devices and not with each scrape, so a scrape reads no driver.
        if isinstance(event, InventoryChanged):
            for uuid, capacities in self._inventory.capacities().items():
                device = self._inventory.devices[uuid]
                healthy = self._devices.is_usable(uuid)
                self._metrics.device(self._config.node_name, device, capacities, healthy=healthy)

    def _device_plugin(self) -> tuple[DevicePlugin, Registration]:
        node, config = self._node, self._config
        prestart = PreStart(
            node, reports=self._reports, waiting=self._waiting, releases=self._releases
        )
        forgotten = ForgottenSlots(node.kubelet, node.checkpoint, node.view)
        offer = SlotOffer(node.checkpoint, self._devices, forgotten, self._metrics)
        plugin = DevicePlugin(prestart, offer=offer, metrics=self._metrics)
        registration = Registration(
            PluginServer(plugin, config.plugin_socket),
            node.kubelet,
            forgotten=forgotten,
            kubelet=config.kubelet_socket,
            metrics=self._metrics,
        )
        return plugin, registration

    def _dra_driver(self) -> tuple[Preparation, DRAPlugin, PluginRegistration]:
        config = self._config
        preparation = Preparation(
            self._node, reports=self._reports, waiting=self._waiting, releases=self._releases
        )
        plugin = DRAPlugin(
            config.node_name, preparation, devices=self._devices, metrics=self._metrics
        )
        sockets = PluginSockets(config.plugins_dir, config.plugins_registry, config.instance)
        return preparation, plugin, PluginRegistration(plugin, sockets)

    async def _register_driver(self) -> None:
        """Register the DRA driver as soon as this agent could take over from another one.

        The kubelet then calls this agent, which answers once the other has ended.
        """
        await self._view.wait_synced()
        await self._dra_registration.run()

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
        """Return why this agent is not ready, for probes and rollouts; empty when it is."""
        if not self._serving.is_held:
            # An agent that waits is ready to take over: the rollout ends the one before it only
            # then, and stops with a wrong configuration. One that serves is ready with the last
            # good one: the operator takes an agent that is not ready for one that hangs.
            if self._config.config_fault:
                return f"the configuration is not in force: {self._config.config_fault}"
            if not self._view.is_synced:
                return "the node's objects are not read yet"
        elif (lost_s := self._view.lost_s) > _SERVER_LOST_S:
            return f"the node's pods have not been readable for {lost_s:.0f} s"
        if self._config.dra and not self._dra_registration.registered.is_set():
            return "the kubelet has not registered the DRA driver"
        if self._serving.is_held and not self._registration.registered.is_set():
            return "not registered with the kubelet"
        return ""

    async def _load(self) -> None:
        """Load the record of the agent before this one."""
        await load_record(self._node)

    async def _capacities_here(self) -> NodeSettings:
        """Return the configuration's settings for this node; wait for its labels if they decide.

        Without the labels the agent would publish and allocate by another node's settings.
        """
        cluster, name = self._config.cluster, self._config.node_name
        labels: dict[str, str] = {}
        while any(entry.selector for entry in cluster.nodes):
            try:
                node = await self._api.get(NODES, name)
            except ClientError as error:
                logger.warning("cannot read the labels of node %s, retrying: %s", name, error)
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
        if self._devices.health.review(self._inventory.present, now=time.monotonic()):
            self._events.put(InventoryChanged())

    async def _hear_events(self) -> None:
        while True:
            event = await self._driver.next_event()
            logger.warning(
                "GPU %s: %s (%s)", event.uuid or "unknown", event.message, event.severity
            )
            if self._devices.health.note(
                event, devices=self._inventory.devices, now=time.monotonic()
            ):
                self._events.put(InventoryChanged())
                self._inventory.look_soon()  # NVML may now report the repair that the device needs

    async def _follow_registration(self) -> None:
        while True:
            self._devices.plugin_problem = await self._registration.problem_changed()
            self._publisher.wake()

    async def _measure(self) -> None:
        while True:
            usage = await self._usage.read()
            self._exposed.usage = usage
            for uuid, reading in usage.devices.items():
                self._metrics.usage(self._config.node_name, uuid, reading)
            await asyncio.sleep(PERIOD_S)


def _local_node(config: AgentConfig, api: Api, driver: Driver, events: Events) -> LocalNode:
    """Create the node's records, still empty, and the parts that enforce them.

    Raises:
        OSError: The state folder cannot be written, or usage regions cannot be mounted in it.
    """
    view = NodeView(config.node_name, events)
    checkpoint = Checkpoint(config.state_dir / "slots.json")
    inventory = Inventory(driver, config.cluster.nvidia, checkpoint, events)
    config.state_dir.mkdir(parents=True, exist_ok=True)
    label_state(config.state_dir)
    usage_folders = folders_on(config.usage_regions)
    usage_folders.verify(config.state_dir)
    instances = Instances(driver, checkpoint, inventory)
    return LocalNode(
        name=config.node_name,
        view=view,
        inventory=inventory,
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
        kubelet=KubeletRecords(
            config.resource,
            PodResources(config.pod_resources_socket, resource=config.resource),
            checkpoint=config.kubelet_checkpoint,
            pods=config.kubelet_pods,
            resource_claims=config.kubelet_resource_claims,
        ),
        claims=ClaimReads(api, view, config.resource),
        host_numa=HostNuma(config.sysfs_dir),
        events=events,
    )


def _publisher(config: AgentConfig, api: Api, view: NodeView, devices: NodeDevices) -> Publisher:
    register = None
    if config.cluster.views.hami_node_register:
        register = HamiRegister(api, node=config.node_name)
    return Publisher(api, view, devices, register=register)


def _exposure(config: AgentConfig) -> Exposure | None:
    """Return what NVIDIA's container toolkit leaves open on this host, and log it."""
    found = exposure(config.host_root)
    if found is not None:
        logger.warning("%s: %s", found.reason, found.message)
    return found
