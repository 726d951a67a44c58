"""One replica of the operator: its real parts, joined as `vgpu_operator.app` joins them.

Only the sockets are missing: the extender is called directly, and no metrics are exported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from vgpu_api.config import ClusterConfig
from vgpu_api.resources import POD_DISRUPTION_BUDGETS, PODS, RESOURCE_CLAIMS, VGPU_CLAIMS
from vgpu_client.clock import Clock
from vgpu_client.lease import Elector, LeaseTimes
from vgpu_client.object_writer import ObjectWriter
from vgpu_client.recorder import Recorder
from vgpu_client.reflector import Reflector
from vgpu_operator.engine.effector import Effector
from vgpu_operator.engine.effects import Effect, EvictPod
from vgpu_operator.engine.engine import EffectWriter, Engine
from vgpu_operator.engine.events import Event
from vgpu_operator.engine.informers import (
    follow_pod_groups,
    informers,
    kinds_of_mode,
    more_informers,
)
from vgpu_operator.engine.leader.fence import Fence
from vgpu_operator.engine.leader.leadership import Leadership
from vgpu_operator.engine.state import State
from vgpu_operator.extender.binding import Binder
from vgpu_operator.ledger import Ledger

from .making_way import Eviction
from .server import Line

TIMES = LeaseTimes(duration_s=5, renew_s=1.0, retry_s=0.3, write_s=1.5)
"""A third of the default, so that a run has several leaders that do something."""
UNIX_AT_0 = 1.7e9
_LAST = (VGPU_CLAIMS, PODS)


class LoopClock(Clock):
    """The loop's time, which is virtual."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return asyncio.get_running_loop().time()

    def unix(self) -> float:
        """See `Clock`."""
        return UNIX_AT_0 + self.monotonic()


class DrawnClock(LoopClock):
    """The loop's time, with jitter that the campaign draws."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    def jitter(self) -> float:
        """See `Clock`."""
        return self._rng.random()


class DrawnEngine(Engine):
    """An engine whose slices end at random instead of by the machine's time."""

    rng: Random

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._something_to_do()
            for effects in self.round():
                self._effector.submit(effects)
                if self.rng.random() < 0.1:
                    for _ in range(5):
                        await asyncio.sleep(0)
                    self._drain()


class OverheardEffects:
    """Effects that tell the judge for which pod another pod is evicted.

    The API server does not learn that. The judge takes the operator at its word, and counts by
    itself.
    """

    def __init__(self, effector: EffectWriter, line: Line, state: Callable[[], State]) -> None:
        self._effector = effector
        self._line = line
        self._state = state

    def submit(self, effects: Iterable[Effect]) -> None:
        """See `EffectWriter`."""
        effects = list(effects)
        server = self._line.server
        for effect in effects:
            if isinstance(effect, EvictPod) and effect.preemptor is not None:
                preemptor = self._state().preemptions.open[effect.preemptor].rooms[0].pod_uid
                server.judge.making_way.evicts(
                    Eviction(
                        self._line.name, effect.regarding.uid, preemptor, server.clock(),
                        is_forced=effect.force,
                    )
                )  # fmt: skip
        self._effector.submit(effects)


class Leader:
    """A replica, from its first list until it is killed or a part of it fails.

    Args:
        line: The replica's line to the API server.
        rng: Decides at random what real time would decide.
        config: The cluster's configuration.
    """

    def __init__(self, line: Line, rng: Random, config: ClusterConfig) -> None:
        api: Any = line
        clock = LoopClock()
        self.line = line
        elector = Elector(
            api, namespace="vgpu-system", name="vgpu-operator", identity=line.name,
            times=TIMES, clock=DrawnClock(rng),
        )  # fmt: skip
        self._writer = writer = ObjectWriter(api, budget=elector)
        state = State(config, Ledger(config=config), line.server.new_id)
        self._effector = effector = Effector(
            api, writer, Recorder(api, line.name, clock=clock), clock,
            observe=self._observe, leads=self.leads,
        )  # fmt: skip
        overheard = OverheardEffects(effector, line, lambda: self.engine.state)
        self.engine = DrawnEngine(state, overheard, clock, self.leads)
        self.engine.rng = rng
        self._informers = informers(api, self._observe, config)
        self._informers += more_informers(api, self._observe, kinds_of_mode(config))
        more = {POD_DISRUPTION_BUDGETS} if config.scheduling.preemption.enabled else ()
        self._budgets = more_informers(api, self._observe, more)
        self._api = api
        of = {each.resource: each for each in self._informers}
        self.binder = Binder(api, writer, self.engine, unix=clock.unix)
        self._fence = Fence(
            api=api, writer=writer, clock=clock, cache=state.cache,
            claims=of.pop(VGPU_CLAIMS), pods=of.pop(PODS),
            resource_claims=of.pop(RESOURCE_CLAIMS, None), others=list(of.values()),
            engine=self.engine,
        )  # fmt: skip
        self._leadership = Leadership(elector, self._informers, self)
        self._tasks: list[asyncio.Task[None]] = []

    async def close_fence(self, decider: str) -> int:
        """See `leadership.Replica`."""
        return await self._fence.close(decider)

    async def follow(self) -> None:
        """See `leadership.Replica`."""
        await self.binder.drain()
        await self._writer.drain()
        await self._effector.drain()
        self.engine.follow()

    def begin(self) -> None:
        """See `leadership.Replica`."""
        self.engine.lead()

    async def publish(self) -> None:
        """Do nothing, because no client needs this replica's address."""

    def leads(self) -> bool:
        """True if this replica decides."""
        return self._leadership.leads()

    async def run(self) -> None:
        """Work until cancelled, or until a part fails; then raise its error."""
        work = [*(self._inform(each) for each in self._informers),
                *(each.run() for each in self._budgets),
                follow_pod_groups(self._api, self.engine, LoopClock()),
                self.engine.run(), self._leadership.run()]  # fmt: skip
        self._tasks = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._leadership.resign()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _inform(self, informer: Reflector[Any]) -> None:
        """Read claims and pods after the nodes and devices that they are on."""
        if informer.resource in _LAST:
            before = (each for each in self._informers if each.resource not in _LAST)
            await asyncio.gather(*(each.synced.wait() for each in before))
        await informer.run()

    def _observe(self, event: Event) -> None:
        self.engine.observe(event)
