"""Arguments and environment of the node agent's process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from glob import glob
from pathlib import Path, PurePosixPath

from vgpu_api.config import ConfigFile
from vgpu_api.errors import VgpuError
from vgpu_client.api import Api
from vgpu_client.logs import LogFormat, configure
from vgpu_client.metrics_server import ACCESS_HELP, MetricsAccess
from vgpu_client.reload import changed
from vgpu_nodeagent import clean_command
from vgpu_nodeagent.agent import Agent
from vgpu_nodeagent.audit_command import of_this_node, usage_of_this_node
from vgpu_nodeagent.config import (
    CDI_DIR,
    DEVICE_PLUGINS_DIR,
    HANG_LIMIT_S,
    HEALTH_PORT,
    KUBELET_DIR,
    LIBRARY,
    METRICS_PORT,
    STATE_DIR,
    SYSFS,
    UNUSED_ALLOCATION_S,
    AgentConfig,
    LimitBackendName,
    Mount,
    OnViolation,
    UsageRegions,
)
from vgpu_nodeagent.discovery.drivers.nvidia import NvidiaDriver
from vgpu_nodeagent.enforcement.driver_files import DriverSource, driver_source
from vgpu_nodeagent.enforcement.host_nodes import UnifiedMemory, copy_device_nodes
from vgpu_nodeagent.reporting.hang_guard import HangGuard
from vgpu_nodeagent.state.saved_config import usable_config

logger = logging.getLogger(__name__)


def parse(arguments: Sequence[str]) -> AgentConfig:
    """Return the configuration in the arguments; exits with a sentence on a wrong one.

    Raises:
        BadInput: Something in the cluster's configuration is wrong.
        OSError: It cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="vgpu-nodeagent", description="Share the GPUs of this node between pods."
    )
    parser.add_argument(
        "--node-name",
        default=os.environ.get("NODE_NAME"),
        help="name of this node; default: $NODE_NAME",
    )
    parser.add_argument(
        "--kubeconfig",
        help="path of a kubeconfig; default: $KUBECONFIG, else the pod's service account",
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="cluster configuration: a YAML file, or a directory of them",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=STATE_DIR,
        help="directory for the agent's files; the same path on the host",
    )
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        default=KUBELET_DIR,
        help="root directory of the kubelet (its --root-dir)",
    )
    parser.add_argument(
        "--device-plugins-dir",
        type=Path,
        default=DEVICE_PLUGINS_DIR,
        help="directory where device plugins register; the kubelet's --root-dir does not move it",
    )
    parser.add_argument("--cdi-dir", type=Path, default=CDI_DIR, help="directory for CDI specs")
    parser.add_argument("--sysfs-dir", type=Path, default=SYSFS, help="path of the host's sysfs")
    parser.add_argument("--library", type=Path, default=LIBRARY, help="path of libvgpu.so")
    parser.add_argument(
        "--driver-file",
        action="append",
        default=[],
        metavar="HOST[:CONTAINER[:rw]]",
        help="mount a driver file into every container, read-only unless :rw is given; HOST may be "
        "a glob pattern if it stands alone; repeatable",
    )
    parser.add_argument(
        "--driver-root",
        action="append",
        default=[],
        type=_absolute,
        metavar="DIR",
        help="look for the driver below this root on the host, such as / or /run/nvidia/driver, "
        "and mount its files into containers; repeatable: the first root with a driver is used; "
        "without it only --driver-file is mounted",
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="path of the host's root directory in this process",
    )
    parser.add_argument(
        "--limit-backend",
        type=LimitBackendName,
        choices=list(LimitBackendName),
        default=LimitBackendName.LIBRARY,
        help="enforce memory limits with libvgpu in the container, or with the driver per pod "
        "cgroup (r615 or later)",
    )
    parser.add_argument(
        "--usage-regions",
        type=UsageRegions,
        choices=list(UsageRegions),
        default=UsageRegions.TMPFS,
        help="keep each container's usage region in a tmpfs of fixed size, which needs the right "
        "to mount; or on the disk of --state-dir, which containers can then fill",
    )
    parser.add_argument(
        "--metrics-port", type=int, default=METRICS_PORT, help="port for metrics; 0 disables"
    )
    parser.add_argument(
        "--metrics-access",
        type=MetricsAccess,
        choices=list(MetricsAccess),
        default=MetricsAccess.REVIEWED,
        help=ACCESS_HELP,
    )
    parser.add_argument(
        "--health-port", type=int, default=HEALTH_PORT, help="port for probes; 0 disables"
    )
    parser.add_argument(
        "--hang-limit-seconds",
        type=float,
        default=HANG_LIMIT_S,
        help="kill the agent if its event loop is stuck for this long, because a stuck agent "
        "blocks the kubelet; 0 disables",
    )
    parser.add_argument(
        "--unused-lease-seconds",
        type=float,
        default=UNUSED_ALLOCATION_S,
        help="release allocated slots that are not in the kubelet's record after this long",
    )
    parser.add_argument(
        "--on-violation",
        type=OnViolation,
        choices=list(OnViolation),
        default=OnViolation.REPORT,
        help="only report a claim that exceeds its limits, or also end its processes (the operator "
        "evicts pods, not the agent)",
    )
    parser.add_argument(
        "--on-unclaimed",
        type=OnViolation,
        choices=list(OnViolation),
        default=OnViolation.REPORT,
        help="only report pod processes that use a GPU without a claim, or also end them",
    )
    parser.add_argument(
        "--log-level",
        default="INFO",
        choices=["DEBUG", "INFO", "WARNING", "ERROR"],
        help="lowest severity to log; logging.level in the configuration overrides it",
    )
    parser.add_argument(
        "--log-format",
        type=LogFormat,
        default=LogFormat.TEXT,
        choices=list(LogFormat),
        help="log text, or one JSON object per line",
    )
    parser.add_argument(
        "--dra",
        action="store_true",
        help="also prepare ResourceClaims of driver vgpu.dev, for mode Claims "
        "(Kubernetes 1.34 or later)",
    )
    parser.add_argument(
        "--resource-slices",
        action="store_true",
        help="publish the devices as ResourceSlices, too, behind a taint that only the operator "
        "passes, unless the node has the label vgpu.dev/allocator=Scheduler; needs --dra",
    )
    parser.add_argument(
        "--instance",
        default=os.environ.get("POD_UID") or "agent",
        help="unique name of this agent on the node, which names its --dra sockets; "
        "default: $POD_UID",
    )
    given = parser.parse_args(arguments)
    configure(given.log_format, given.log_level)
    if not given.node_name:
        parser.error("give --node-name, or set NODE_NAME")
    if given.resource_slices and not given.dra:
        # A kubelet without the driver deletes its slices.
        parser.error("--resource-slices: needs --dra")
    if not given.library.is_file():
        parser.error(f"--library: {given.library} is not a file")
    state_dir = given.state_dir.absolute()
    cluster, config_fault = usable_config(given.config, state_dir)
    return AgentConfig(
        node_name=given.node_name,
        kubeconfig=given.kubeconfig,
        cluster=cluster,
        config_path=given.config,
        config_fault=config_fault,
        state_dir=state_dir,
        kubelet_dir=given.kubelet_dir.absolute(),
        device_plugins_dir=given.device_plugins_dir.absolute(),
        cdi_dir=given.cdi_dir.absolute(),
        sysfs_dir=given.sysfs_dir.absolute(),
        library=given.library.absolute(),
        driver_files=tuple(f for text in given.driver_file for f in _driver_files(text)),
        driver_roots=tuple(given.driver_root),
        host_root=given.host_root.absolute(),
        limit_backend=given.limit_backend,
        usage_regions=given.usage_regions,
        health_port=given.health_port,
        hang_limit_s=given.hang_limit_seconds,
        metrics_port=given.metrics_port,
        metrics_access=given.metrics_access,
        unused_allocation_s=given.unused_lease_seconds,
        on_violation=given.on_violation,
        on_unclaimed=given.on_unclaimed,
        log_level=given.log_level,
        dra=given.dra,
        resource_slices=given.resource_slices,
        instance=given.instance,
    )


def _absolute(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if not path.is_absolute():
        raise argparse.ArgumentTypeError(f"Invalid value: {text}: must be an absolute path")
    return path


def _driver_files(text: str) -> list[Mount]:
    """`HOST:CONTAINER[:rw]`, or a pattern whose files keep their paths."""
    host, _, rest = text.partition(":")
    inside, _, mode = rest.partition(":")
    if inside:
        return [Mount(host, inside, read_only=mode != "rw")]
    return [Mount(path, path) for path in sorted(glob(host))]


async def serve(config: AgentConfig, guard: HangGuard | None = None) -> None:
    """Run the agent until a signal or a new configuration ends it."""
    task = asyncio.current_task()
    assert task is not None
    alive = asyncio.create_task(guard.keep()) if guard is not None else None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    watching = asyncio.create_task(_end_with(config, task.cancel))
    async with Api.connect(config.kubeconfig) as api:
        with contextlib.suppress(asyncio.CancelledError):
            source = driver_source(config.driver_roots, config.host_root, config.driver_files)
            memory = UnifiedMemory(config.driver_roots, host=config.host_root)
            nvml = partial(_nvml, config, source, memory)
            driver = NvidiaDriver(nvml=nvml, sysfs=config.sysfs_dir)
            await Agent(config, api, driver).run()
    watching.cancel()
    if alive is not None:
        alive.cancel()


async def _end_with(config: AgentConfig, end: Callable[[], object]) -> None:
    """Call `end` when another configuration is mounted; the restarted process will use it.

    Containers on the node keep running, as at every restart of the agent.
    """
    source = ConfigFile(config.config_path, config.cluster, stands_in=config.config_fault != "")
    await changed(source, config.log_level)
    logger.info("configuration has changed; restarting to use it")
    end()


def _nvml(config: AgentConfig, source: DriverSource, memory: UnifiedMemory) -> Path | None:
    """Return the path of NVML's library, and make the device nodes that it opens.

    Called before every attempt to load NVML: a driver may be installed after the agent starts.
    """
    nvml = source.files().nvml
    if config.host_root != Path("/"):
        roots = [config.host_root / str(root).lstrip("/") for root in config.driver_roots]
        copy_device_nodes(
            [config.host_root / "dev", *(root / "dev" for root in roots)], Path("/dev")
        )
        memory.load()
    return nvml


def main() -> None:
    """Run the subcommand in the first argument (`audit`, `usage`, `clean`), else the agent."""
    if sys.argv[1:2] == ["audit"]:
        sys.exit(of_this_node(sys.argv[2:]))
    if sys.argv[1:2] == ["usage"]:
        sys.exit(usage_of_this_node(sys.argv[2:]))
    if sys.argv[1:2] == ["clean"]:
        sys.exit(clean_command.main(sys.argv[2:]))
    faults: list[BaseException] = []
    try:
        config = parse(sys.argv[1:])
        with contextlib.ExitStack() as stack:
            guard = None
            if config.hang_limit_s:
                guard = HangGuard(config.hang_limit_s)
                stack.callback(guard.close)
            asyncio.run(serve(config, guard))
    except* (VgpuError, OSError) as group:
        faults.extend(_leaves(group))
    if faults:
        sys.exit("\n".join(f"vgpu-nodeagent: {fault}" for fault in faults))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return leaves


if __name__ == "__main__":
    main()
