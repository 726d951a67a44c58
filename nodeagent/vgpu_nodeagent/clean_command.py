"""`vgpu-nodeagent clean`: removes what agents wrote to the host, when the project is uninstalled.

A DaemonSet runs it after the agents have ended (docs/operations/uninstall.md). It unmounts usage
regions and removes CDI specs, the plugin's socket and the state folder. It may be repeated. It
waits for an agent that still serves the node, and fails after a minute, because that agent would
write everything again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vgpu_api.dra import DRIVER
from vgpu_nodeagent.config import (
    CDI_DIR,
    DEVICE_PLUGINS_DIR,
    KUBELET_DIR,
    PLUGIN_SOCKET,
    PLUGINS,
    PLUGINS_REGISTRY,
    STATE_DIR,
)
from vgpu_nodeagent.enforcement.cdi import SpecFolder
from vgpu_nodeagent.enforcement.usage_folders import BoundedFolders
from vgpu_nodeagent.state.serving_lock import ServingLock

_WAIT_S = 60.0
_FAILED = 1


def main(arguments: Sequence[str]) -> int:
    """Clean this host; return the exit status, 1 if something remains."""
    parser = argparse.ArgumentParser(
        prog="vgpu-nodeagent clean", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--state-dir", type=Path, default=STATE_DIR, help="the agent's files on the host"
    )
    parser.add_argument("--cdi-dir", type=Path, default=CDI_DIR, help="the folder of CDI specs")
    parser.add_argument(
        "--device-plugins-dir",
        type=Path,
        default=DEVICE_PLUGINS_DIR,
        help="where device plugins register",
    )
    parser.add_argument(
        "--kubelet-dir", type=Path, default=KUBELET_DIR, help="the kubelet's root directory"
    )
    parser.add_argument("--stay", action="store_true", help="wait for SIGTERM afterwards")
    given, _ = parser.parse_known_args(arguments)  # the DaemonSet also passes the agents' arguments
    if given.stay:
        ends = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(
            signal.SIG_BLOCK, ends
        )  # process 1 ignores signals without a handler
        signal.sigwait(ends)
        return 0
    if len(given.state_dir.absolute().parts) < 3:
        parser.error(
            f"--state-dir: Invalid value: {given.state_dir}: must lie below another folder"
        )
    try:
        state = given.state_dir.absolute()
        places = HostPlaces(given.cdi_dir, given.device_plugins_dir, given.kubelet_dir)
        done = clean(state, places, wait_s=_WAIT_S)
    except (OSError, TimeoutError) as error:
        print(f"vgpu-nodeagent clean: {error}", file=sys.stderr)
        return _FAILED
    print("\n".join(done) or "nothing was left here")
    return 0


@dataclass(frozen=True, slots=True)
class HostPlaces:
    """The folders of others in which agents write.

    Attributes:
        cdi: The runtime's folder of CDI specs.
        device_plugins: Where device plugins register.
        kubelet: The kubelet's root directory, with the sockets of DRA drivers.
    """

    cdi: Path
    device_plugins: Path
    kubelet: Path


def clean(state: Path, places: HostPlaces, *, wait_s: float) -> list[str]:
    """Remove everything, and return a line for each thing that was removed.

    Args:
        state: The agents' state folder; it is removed too, unless it is a mount point.
        places: The folders of others.
        wait_s: How long to wait for an agent to end.

    Raises:
        TimeoutError: An agent serves the node.
        OSError: Something cannot be removed; the rest is gone.
    """
    done: list[str] = []
    lock = ServingLock(state)
    if state.is_dir():
        asyncio.run(_take(lock, wait_s))
    try:
        specs = SpecFolder(places.cdi)
        for allocation in sorted(specs.allocations()):
            specs.remove(allocation)
            done.append(f"CDI spec of {allocation}")
        for socket in _sockets(places):
            socket.unlink()
            done.append(str(socket))
        driver = places.kubelet / PLUGINS / DRIVER
        if driver.is_dir() and not driver.is_mount():
            driver.rmdir()
            done.append(str(driver))
        done += _unmount(state)
        if state.is_dir():
            done += _remove(state)
    finally:
        lock.release()
    return done


def _sockets(places: HostPlaces) -> list[Path]:
    """Return the sockets that agents left."""
    plugin = places.device_plugins / PLUGIN_SOCKET
    return [
        *([plugin] if plugin.exists() else []),
        *sorted((places.kubelet / PLUGINS / DRIVER).glob("*.sock")),
        *sorted((places.kubelet / PLUGINS_REGISTRY).glob(f"{DRIVER}-*.sock")),
    ]


async def _take(lock: ServingLock, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await lock.acquire()
    except TimeoutError:
        raise TimeoutError(f"an agent still serves this node after {within_s:.0f} s") from None


def _unmount(state: Path) -> list[str]:
    """Unmount everything below the state folder, innermost first."""
    folders = BoundedFolders()
    found = [
        Path(fields[4].encode().decode("unicode_escape"))
        for fields in map(str.split, Path("/proc/self/mountinfo").read_text().splitlines())
    ]
    inside = {path for path in found if state in path.parents}
    for path in sorted(inside, reverse=True):
        folders.remove(path)
    return [f"mount {path}" for path in sorted(inside)]


def _remove(state: Path) -> list[str]:
    """Remove the folder, or empty it if it is a mount point."""
    if not state.is_mount():
        shutil.rmtree(state)
        return [str(state)]
    done = []
    for entry in sorted(os.scandir(state), key=lambda found: found.name):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
        done.append(entry.path)
    return done
