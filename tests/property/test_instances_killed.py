"""No MIG instance is lost or shared if the agent is killed between any two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent_node import GPU_0, ObedientDriver, a_driver_device
from builders import a_claim, a_request, an_allocated_device, an_allocation
from vgpu_api.config import NvidiaConfig
from vgpu_api.v1alpha1 import Allocation, VGPUClaim
from vgpu_api.v1alpha1.vgpuclaim import MigAllocation
from vgpu_nodeagent.discovery.drivers.base import MigInstance
from vgpu_nodeagent.discovery.inventory import Inventory
from vgpu_nodeagent.errors import Refused
from vgpu_nodeagent.state.checkpoint import Checkpoint, decode, encode
from vgpu_nodeagent.state.claim_instances import ClaimInstance, places
from vgpu_nodeagent.state.claim_instances import made as usable
from vgpu_nodeagent.state.instances import Instances
from vgpu_nodeagent.state.slots import SlotState

CLAIMS = ("a", "b", "c")
PLACES = [("1g.5gb", 6, 1), ("1g.5gb", 5, 1), ("3g.20gb", 4, 4), ("2g.10gb", 2, 2)]
STEPS = 12
"""More steps than making or removing two instances takes."""


FILE = Path("slots.json")


class Killed(BaseException):
    """The agent's process was killed."""


class Fate:
    """A counter of steps that kills the agent at one of them."""

    def __init__(self) -> None:
        self.left = 0

    def step(self, _: str = "") -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


class MortalCheckpoint(Checkpoint):
    """A checkpoint whose process may be killed before or after a write; the disk is a value."""

    def __init__(self, disk: list[bytes], fate: Fate) -> None:
        super().__init__(FILE)
        self.disk = disk
        self.fate = fate
        self.state = decode(FILE, disk[-1])

    def commit(self, state: SlotState) -> None:
        self.fate.step()
        self.disk[:] = [encode(state)]
        self.fate.step()
        self.state = state


class Cuts(RuleBasedStateMachine):
    """Claims come and go, an administrator makes instances too, and the agent dies at any step."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = [encode(SlotState())]
        self.fate = Fate()
        self.driver = ObedientDriver([a_driver_device()])
        self.driver.fault = self.fate.step
        self.foreign: set[MigInstance] = set()
        self.live: dict[str, tuple[VGPUClaim, Allocation]] = {}
        self.restart()

    @initialize()
    def mig_mode(self) -> None:
        self.driver.cut(GPU_0, [])

    def teardown(self) -> None:
        """Release all claims and check that only the administrator's instances are left."""
        self.live.clear()
        self.fate.left = 0
        self.run(self.instances.remove_all(self.checkpoint.state.claim_instances.values()))
        assert set(self.there()) == self.foreign
        assert self.checkpoint.state.claim_instances == {}

    def restart(self) -> None:
        """Start an agent that has only the content of the disk."""
        self.checkpoint = MortalCheckpoint(self.disk, self.fate)
        self.instances = Instances(
            self.driver, self.checkpoint, Inventory(self.driver, NvidiaConfig())
        )

    def there(self) -> tuple[MigInstance, ...]:
        (device,) = self.driver.present
        return device.mig_instances

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run an action, and start a new agent if the action ended the old one."""
        try:
            asyncio.run(work)
        except Killed:
            self.restart()
        except Refused:
            pass

    @rule(
        claim=st.sampled_from(CLAIMS),
        places=st.lists(st.sampled_from(PLACES), min_size=1, max_size=2, unique=True),
        number=st.sampled_from([1, 2]),
        kill=st.integers(0, STEPS),
    )
    def start(self, claim: str, places: list[Any], number: int, kill: int) -> None:
        """Start a container of a claim; a claim with an allocation keeps it."""
        if claim not in self.live:
            devices = [
                an_allocated_device(uuid=GPU_0).model_copy(
                    update={"mig": MigAllocation(profile=profile, start=start, size=size)}
                )
                for profile, start, size in places
            ]
            allocation = an_allocation(*devices, number=number)
            made = a_claim(claim, uid=claim, requests=[a_request()], allocation=allocation)
            self.live[claim] = made, allocation
        self.fate.left = kill
        self.run(self.instances.make(*self.live[claim]))

    @rule(claim=st.sampled_from(CLAIMS), kill=st.integers(0, STEPS))
    def end(self, claim: str, kill: int) -> None:
        """End the claim's pod."""
        if claim in self.live:
            _, allocation = self.live.pop(claim)
            self.fate.left = kill
            self.run(self.instances.remove(claim, allocation.id))

    @rule(kill=st.integers(0, STEPS))
    def sweep(self, kill: int) -> None:
        """Let the agent find claims that are gone without an event."""
        self.fate.left = kill
        over = filter(self.is_over, self.checkpoint.state.claim_instances.values())
        self.run(self.instances.remove_all(list(over)))

    def is_over(self, claim_instance: ClaimInstance) -> bool:
        _, allocation = self.live.get(claim_instance.claim_uid, (None, None))
        return allocation is None or allocation.id != claim_instance.allocation_id

    @rule(place=st.sampled_from(PLACES))
    def administrator_cuts(self, place: tuple[str, int, int]) -> None:
        profile, start, size = place
        named = MigInstance(profile, start, size, f"MIG-admin-{len(self.foreign)}")
        mine = [
            claim_instance.instance
            for claim_instance in self.checkpoint.state.claim_instances.values()
        ]
        if not any(other.overlaps(start, size) for other in (*self.there(), *mine)):
            self.driver.cut(GPU_0, [*self.there(), named])
            self.foreign.add(named)

    @rule()
    def reboot(self) -> None:
        """Reboot the machine; instances do not survive that."""
        self.driver.cut(GPU_0, [])
        self.foreign.clear()
        self.restart()

    @invariant()
    def every_instance_is_recorded_or_the_administrators(self) -> None:
        own = places(self.checkpoint.state.claim_instances)
        ours = set(self.there()) - self.foreign
        assert {(GPU_0, instance.start) for instance in ours} <= own

    @invariant()
    def what_the_administrator_made_is_untouched(self) -> None:
        assert self.foreign <= set(self.there())

    @invariant()
    def what_is_said_to_be_made_is_its_claims_alone(self) -> None:
        made = usable(self.checkpoint.state.claim_instances).values()
        assert len({claim_instance.instance.uuid for claim_instance in made}) == len(made)
        for claim_instance in made:
            assert replace(claim_instance.instance) not in self.foreign


TestCuts = Cuts.TestCase
TestCuts.settings = settings(stateful_step_count=20)
