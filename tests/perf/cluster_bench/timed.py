"""Creates objects and measures the time until a watch shows each as done; a process of its own.

The protocol of such a process: it prints `ready` when it watches, waits for a line on its standard
input, and prints its times as one JSON object when every object is done or the limit has passed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.background import Background
from vgpu_client.errors import ClientError
from vgpu_client.reflector import ObjectIdentity, Reflector, Scope
from vgpu_client.transport import Object

NAMESPACE = "default"
_CREATES_AT_ONCE = 32


@dataclass(slots=True)
class Times:
    """Seconds since the first create, by the objects' numbers.

    Attributes:
        sent: When the create was sent.
        bound: When the watch showed that it was done.
        refused: The API server's answers to creates that failed.
        cpu_s: CPU time of this process.
    """

    sent: dict[int, float] = field(default_factory=dict)
    bound: dict[int, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


class TimedCreates:
    """Creates all objects at once, 32 calls in flight, or at a steady rate.

    Args:
        api: The API server.
        resource: The kind of the objects.
        objects: What to create; the numbers in `Times` are positions in it.
        is_done: Returns True once an object has what its user waits for.
        scope: The objects that are watched.
        rate: Objects a second; None: all at once.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        objects: Sequence[Object],
        *,
        is_done: Callable[[Object], bool],
        scope: Scope = Scope(),  # noqa: B008 - immutable
        rate: float | None = None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._objects = objects
        self._numbers = {each["metadata"]["name"]: at for at, each in enumerate(objects)}
        self._is_done = is_done
        self._rate = rate
        self._times = Times()
        self._started = 0.0
        self._all_done = asyncio.Event()
        self._reflector = Reflector(api, resource, self, decode=lambda raw: raw, scope=scope)

    async def run(self, *, limit_s: float) -> Times:
        """Create the objects; return the times that are known at the end."""
        background = Background()
        watching = asyncio.create_task(self._reflector.run())
        try:
            await self._reflector.synced.wait()
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            self._started, cpu = time.monotonic(), time.process_time()
            try:
                async with asyncio.timeout(limit_s):
                    await self._begin(background)
                    await self._all_done.wait()
            except TimeoutError:
                print(f"{len(self._times.bound)} of {len(self._objects)} done", file=sys.stderr)
            self._times.cpu_s = time.process_time() - cpu
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return self._times

    async def _begin(self, background: Background) -> None:
        numbers = iter(range(len(self._objects)))
        if self._rate is None:
            for _ in range(_CREATES_AT_ONCE):
                background.start(self._create(numbers))
            return
        for number in numbers:
            await asyncio.sleep(max(0.0, number / self._rate - self._now()))
            background.start(self._create((number,)))

    async def _create(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._times.sent[number] = self._now()
            try:
                await self._api.create(self._resource, self._objects[number])
            except ClientError as error:
                self._times.refused.append(str(error))
                self._count()

    def added(self, obj: Object) -> None:
        """Note when an object is done."""
        number = self._numbers.get(obj["metadata"]["name"])
        if number is not None and number not in self._times.bound and self._is_done(obj):
            self._times.bound[number] = self._now()
            self._count()

    def modified(self, obj: Object) -> None:
        """Note when an object is done."""
        self.added(obj)

    def deleted(self, identity: ObjectIdentity) -> None:
        """Do nothing: none is deleted while measuring."""

    def unreadable(self, identity: ObjectIdentity, raw: Object, error: Exception) -> None:
        """Never called, because nothing is decoded."""
        raise error

    def _count(self) -> None:
        if len(self._times.bound) + len(self._times.refused) >= len(self._objects):
            self._all_done.set()

    def _now(self) -> float:
        return time.monotonic() - self._started


def print_times(times: Times) -> None:
    """Print the last line of the protocol."""
    print(json.dumps(asdict(times)), flush=True)
