"""Creates pods all at once and takes the time until each has a node; a process of its own.

Prints `ready` when it watches, waits for a line on its standard input, and prints its times as one
JSON object when every pod has a node or the limit has passed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.background import Background
from vgpu_client.errors import ClientError
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope
from vgpu_client.transport import Object

LABEL = "bench"
NAMESPACE = "default"
_CREATES_AT_ONCE = 32

DEVICES: Mapping[str, object] = {
    "nvidia.com/gpu": 1,
    "nvidia.com/gpumem": 8000,
    "nvidia.com/gpucores": 10,
}
"""A slice of a device in HAMi's words."""


def a_pod(run: str, number: int, *, with_devices: bool) -> Object:
    """A pod as its user writes it."""
    limits = dict(DEVICES) if with_devices else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{run}-{number}", "namespace": NAMESPACE, "labels": {LABEL: run}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "128Mi"},
                        "limits": limits,
                    },
                }
            ],
        },
    }


@dataclass(slots=True)
class Times:
    """Seconds since the first create, by the pods' numbers.

    Attributes:
        sent: When the create was sent.
        bound: When the watch showed the node.
        refused: What the API server said instead of creating.
        cpu_s: What this process used for it.
    """

    sent: dict[int, float] = field(default_factory=dict)
    bound: dict[int, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


class Load:
    """One load.

    Args:
        api: Where to.
        run: The pods' label and the beginning of their names.
        pods: How many.
        with_devices: Whether they ask for devices.
    """

    def __init__(self, api: Api, run: str, pods: int, *, with_devices: bool) -> None:
        self._api = api
        self._run = run
        self._pods = [a_pod(run, number, with_devices=with_devices) for number in range(pods)]
        self._times = Times()
        self._started = 0.0
        self._done = asyncio.Event()
        self._reflector = Reflector(
            api,
            PODS,
            self,
            decode=lambda raw: raw,
            scope=Scope(label_selector=f"{LABEL}={run}"),
        )

    async def run(self, *, limit_s: float) -> Times:
        """Carry it out; returns the times that are known when it ends."""
        background = Background()
        watching = asyncio.create_task(self._reflector.run())
        try:
            await self._reflector.synced.wait()
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            self._started, cpu = time.monotonic(), time.process_time()
            left = iter(range(len(self._pods)))
            for _ in range(_CREATES_AT_ONCE):
                background.start(self._create(left))
            try:
                async with asyncio.timeout(limit_s):
                    await self._done.wait()
            except TimeoutError:
                print(f"{len(self._times.bound)} of {len(self._pods)} bound", file=sys.stderr)
            self._times.cpu_s = time.process_time() - cpu
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return self._times

    async def _create(self, left: Iterator[int]) -> None:
        for number in left:
            self._times.sent[number] = self._now()
            try:
                await self._api.create(PODS, self._pods[number])
            except ClientError as error:
                self._times.refused.append(str(error))
                self._count()

    def added(self, obj: Object) -> None:
        """Note when a pod has a node."""
        if not obj["spec"].get("nodeName"):
            return
        number = int(obj["metadata"]["name"].rpartition("-")[2])
        if number not in self._times.bound:
            self._times.bound[number] = self._now()
            self._count()

    def modified(self, obj: Object) -> None:
        """Note when a pod has a node."""
        self.added(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        """None is deleted while it is measured."""

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Cannot be: nothing is decoded."""
        raise error

    def _count(self) -> None:
        if len(self._times.bound) + len(self._times.refused) >= len(self._pods):
            self._done.set()

    def _now(self) -> float:
        return time.monotonic() - self._started


async def main() -> None:
    """Read the arguments and carry the load out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--pods", type=int, required=True)
    parser.add_argument("--with-devices", action="store_true")
    parser.add_argument("--limit", type=float, required=True, help="seconds")
    options = parser.parse_args()
    async with Api.connect(options.kubeconfig) as api:
        load = Load(api, options.run, options.pods, with_devices=options.with_devices)
        times = await load.run(limit_s=options.limit)
    print(json.dumps(asdict(times)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
