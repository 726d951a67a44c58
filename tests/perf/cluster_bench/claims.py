"""Creates Immediate claims at a steady rate and takes the time until each has its device.

A process of its own, with the protocol of `load`: prints `ready`, waits for a line, prints times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict

from perf.cluster_bench.load import NAMESPACE, Times
from vgpu_api.names import API_VERSION
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.background import Background
from vgpu_client.errors import ClientError
from vgpu_client.reflector import ObjectIdentity, Reflector
from vgpu_client.transport import Object

_PREFIX = "now"


def a_claim(number: int) -> Object:
    """A claim as its user writes it, of the same size as a pod of the load."""
    return {
        "apiVersion": API_VERSION,
        "kind": VGPU_CLAIMS.kind,
        "metadata": {"name": f"{_PREFIX}-{number}", "namespace": NAMESPACE},
        "spec": {"bindingMode": "Immediate", "requests": [{"memory": "8000Mi", "cores": 10}]},
    }


class Claims:
    """So many claims, so many a second.

    Args:
        api: Where to.
        count: How many.
        rate: A second.
    """

    def __init__(self, api: Api, count: int, rate: float) -> None:
        self._api = api
        self._count = count
        self._rate = rate
        self._times = Times()
        self._started = 0.0
        self._done = asyncio.Event()
        self._reflector = Reflector(api, VGPU_CLAIMS, self, decode=lambda raw: raw)

    async def run(self, *, limit_s: float) -> Times:
        """Create them; returns the times that are known when it ends."""
        background = Background()
        watching = asyncio.create_task(self._reflector.run())
        try:
            await self._reflector.synced.wait()
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            self._started, cpu = time.monotonic(), time.process_time()
            try:
                async with asyncio.timeout(limit_s):
                    for number in range(self._count):
                        await asyncio.sleep(max(0.0, number / self._rate - self._now()))
                        background.start(self._create(number))
                    await self._done.wait()
            except TimeoutError:
                print(f"{len(self._times.bound)} of {self._count} allocated", file=sys.stderr)
            self._times.cpu_s = time.process_time() - cpu
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return self._times

    async def _create(self, number: int) -> None:
        self._times.sent[number] = self._now()
        try:
            await self._api.create(VGPU_CLAIMS, a_claim(number))
        except ClientError as error:
            self._times.refused.append(str(error))
            self._count_down()

    def added(self, obj: Object) -> None:
        """Note when a claim has its device."""
        run, _, number = obj["metadata"]["name"].rpartition("-")
        if run != _PREFIX or not (obj.get("status") or {}).get("allocation"):
            return
        if int(number) not in self._times.bound:
            self._times.bound[int(number)] = self._now()
            self._count_down()

    def modified(self, obj: Object) -> None:
        """Note when a claim has its device."""
        self.added(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        """None is deleted while it is measured."""

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Cannot be: nothing is decoded."""
        raise error

    def _count_down(self) -> None:
        if len(self._times.bound) + len(self._times.refused) >= self._count:
            self._done.set()

    def _now(self) -> float:
        return time.monotonic() - self._started


async def main() -> None:
    """Read the arguments and create the claims."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="a second")
    parser.add_argument("--limit", type=float, required=True, help="seconds")
    options = parser.parse_args()
    async with Api.connect(options.kubeconfig) as api:
        times = await Claims(api, options.count, options.rate).run(limit_s=options.limit)
    print(json.dumps(asdict(times)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
