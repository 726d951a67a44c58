"""An operator's engine on an API server in memory, with clocks that tests set."""

from __future__ import annotations

import asyncio
from typing import Any

from builders import a_container, a_device, a_node, a_pod
from memory_api import MemoryApi
from vgpu_api.config import ClusterConfig
from vgpu_api.core import Pod
from vgpu_api.resources import PODS, VGPU_CLAIMS
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_client.status_writer import StatusWriter
from vgpu_operator.engine.books import Books
from vgpu_operator.engine.claim_writer import ClaimWriter
from vgpu_operator.engine.clock import Clock
from vgpu_operator.engine.engine import Engine
from vgpu_operator.engine.recorder import Recorder
from vgpu_operator.engine.teller import Teller
from vgpu_operator.extender.binding import Binder
from vgpu_operator.ledger import Ledger

CONFIG = ClusterConfig()


class Replica:
    """One operator's engine and what it needs, on `api`: one of its own if none is given."""

    def __init__(self, api: Any = None, *, config: ClusterConfig = CONFIG) -> None:
        self.api: Any = MemoryApi() if api is None else api
        self.time = 1000.0
        self.leading = True
        self.slept: list[float] = []
        self.books = Books()
        self.ledger = Ledger(config=config, on_change=self._wake)
        clock = Clock(monotonic=lambda: self.time, unix=lambda: 1.7e9 + self.time)
        self.writer = ClaimWriter(
            self.api,
            StatusWriter(self.api, VGPU_CLAIMS, sleep=self._no_sleep),
            known=self.books.claim,
            learned=lambda claim: self.engine.intake.claim_changed(claim),
            ended=lambda key: self.engine.note(key),
            may_write=lambda: self.leading,
            sleep=self._no_sleep,
        )
        self.recorder = Recorder(self.api, now=clock.unix)
        self.engine = Engine(
            api=self.api,
            config=config,
            ledger=self.ledger,
            books=self.books,
            writer=self.writer,
            teller=Teller(
                books=self.books, writer=self.writer, recorder=self.recorder, clock=clock
            ),
            clock=clock,
            leads=lambda: self.leading,
        )
        self.binder = Binder(
            api=self.api, engine=self.engine, unix=clock.unix, sleep=self._no_sleep
        )

    def card(self, **fields: Any) -> None:
        """A card of a ready node."""
        device = a_device(**fields)
        self.engine.intake.node_changed(a_node(device.spec.node_name))
        self.engine.intake.device_changed(device)

    def pod(self, name: str = "pod-1", **fields: Any) -> Pod:
        """A pod as HAMi's users write it, seen by the engine and stored in the API."""
        limits = fields.pop("limits", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192})
        fields.setdefault("containers", [a_container(limits=limits)])
        pod = a_pod(name, **fields)
        self.api.put(PODS, pod.to_wire())
        self.engine.intake.pod_changed(pod)
        return pod

    def claim(self, claim: VGPUClaim) -> VGPUClaim:
        """A claim, stored and seen."""
        stored = VGPUClaim.read(self.api.put(VGPU_CLAIMS, claim.to_wire()))
        self.engine.intake.claim_changed(stored)
        return stored

    def claim_of(self, pod: Pod) -> VGPUClaim:
        """The claim that was made for a pod, as the API has it."""
        consumer = self.books.consumer(pod.metadata.uid)
        assert consumer is not None
        return VGPUClaim.read(self.api.claim(consumer.claim[1]))

    async def settle(self) -> None:
        """Rounds and writes until nothing is left to do."""
        for _ in range(8):
            self.engine.round()
            await self.writer.drain()
            await asyncio.sleep(0)

    def _wake(self) -> None:
        self.engine.wake()

    async def _no_sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)
