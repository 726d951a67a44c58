"""The operator marks an agent's pod until it shows what the node's devices are now."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_device, a_node, an_agent_pod
from replica import Replica
from vgpu_api.agent_pods import device_mark
from vgpu_api.names import AGENT_NAMESPACE, ANNOTATION_REQUEUE
from vgpu_api.resources import PODS
from vgpu_api.v1alpha1 import Condition, GPUDevice
from vgpu_client.errors import Unreachable

NODE = "node-1"


def a_version(number: int, *, generation: int = 1, ready: str = "True", **of: Any) -> GPUDevice:
    device = a_device(node=NODE, **of)
    metadata = device.metadata.model_copy(
        update={"resource_version": str(number), "generation": generation}
    )
    conditions = [Condition(type="Ready", status=ready)]
    status = device.status.model_copy(update={"conditions": conditions})
    return device.model_copy(update={"metadata": metadata, "status": status})


class Marked:
    """A node with a device and an agent; a test changes the device."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        replica.news.node_changed(a_node(NODE))
        replica.news.device_changed(a_version(10))
        self.show(an_agent_pod(NODE, resource_version=11))

    def show(self, pod: Any) -> None:
        self.replica.api.put(PODS, pod.to_wire())
        self.deliver()

    def deliver(self) -> None:
        """Deliver the agent's pod as it is."""
        raw = self.replica.api.objects[PODS.plural, AGENT_NAMESPACE, f"agent-of-{NODE}"]
        self.replica.news.pod_changed(type(an_agent_pod(NODE)).model_validate(raw))

    async def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.replica.time += 1
            await self.replica.settle()

    @property
    def patches(self) -> int:
        """Return the number of patches that were sent."""
        return sum(verb == "merge" for verb, _ in self.replica.api.log)

    @property
    def mark(self) -> str:
        raw = self.replica.api.objects[PODS.plural, AGENT_NAMESPACE, f"agent-of-{NODE}"]
        return str(raw["metadata"].get("annotations", {}).get(ANNOTATION_REQUEUE, ""))


@pytest.fixture
async def marked(replica: Replica) -> Marked:
    made = Marked(replica)
    await made.pass_time(2)
    assert made.mark == device_mark([a_version(10)])
    made.deliver()
    return made


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(a_version(20, generation=2), id="settings"),
        pytest.param(a_version(20, ready="Unknown"), id="unknown"),
    ],
)
async def test_a_change_that_concerns_the_agent_is_marked_in_two_seconds(
    marked: Marked, new: GPUDevice
) -> None:
    marked.replica.news.device_changed(new)
    await marked.pass_time(2)
    assert marked.mark == device_mark([new]) != device_mark([a_version(10)])


async def test_a_device_that_comes_or_goes_is_marked(marked: Marked) -> None:
    second = a_version(20, name="gpu-second", uuid="GPU-second")
    marked.replica.news.device_changed(second)
    await marked.pass_time(2)
    assert marked.mark == device_mark([a_version(10), second])
    marked.replica.news.device_gone(second.metadata.name)
    await marked.pass_time(2)
    marked.deliver()  # late: the pod shows the former mark only now
    await marked.pass_time(2)
    assert marked.mark == device_mark([a_version(10)])


async def test_what_the_operator_writes_itself_is_not_marked(marked: Marked) -> None:
    before, sent = marked.mark, marked.patches
    for version in range(20, 30):
        new = a_version(version)
        status = new.status.model_copy(update={"claims": version})
        marked.replica.news.device_changed(new.model_copy(update={"status": status}))
        await marked.pass_time(1)
    assert marked.mark == before
    assert marked.patches == sent


async def test_a_mark_that_was_lost_is_written_again(marked: Marked) -> None:
    new = a_version(20, generation=2)
    marked.replica.api.before = lambda verb, _: (
        Unreachable("no answer") if verb == "merge" else None
    )
    marked.replica.news.device_changed(new)
    await marked.pass_time(3)
    assert marked.mark != device_mark([new])
    marked.replica.api.before = lambda verb, name: None
    await marked.pass_time(30)
    assert marked.mark == device_mark([new])


async def test_a_new_leader_marks_what_its_predecessor_did_not(marked: Marked) -> None:
    successor = type(marked.replica)(marked.replica.api)
    successor.time = marked.replica.time
    new = a_version(20, generation=2)
    successor.news.node_changed(a_node(NODE))
    successor.news.device_changed(new)
    there = Marked.__new__(Marked)
    there.replica = successor
    there.deliver()
    await there.pass_time(2)
    assert there.mark == device_mark([new])


async def test_a_mark_that_is_shown_is_not_written_again(marked: Marked) -> None:
    sent = marked.patches
    await marked.pass_time(60)
    assert marked.patches == sent


async def test_an_agent_that_took_a_device_back_too_early_is_told_again(marked: Marked) -> None:
    """It starts, writes, and is not ready yet: the device is unknown again, with the same mark."""
    marked.replica.news.device_changed(a_version(20, ready="Unknown"))
    await marked.pass_time(2)
    first = marked.mark
    marked.deliver()
    marked.replica.news.device_changed(a_version(21))
    marked.replica.news.device_changed(a_version(22, ready="Unknown"))
    told = set()
    for _ in range(3):
        await marked.pass_time(7)
        marked.deliver()
        told.add(marked.mark)
    assert len(told) == 2  # each differs from the one before
    assert first in told
    marked.replica.news.device_changed(a_version(23))
    await marked.pass_time(7)
    marked.deliver()
    assert marked.mark == device_mark([a_version(23)])
    sent = marked.patches
    await marked.pass_time(60)
    assert marked.patches == sent


async def test_devices_of_other_vendors_do_not_count(marked: Marked) -> None:
    before = marked.mark
    other = a_version(20, name="dcu", uuid="DCU-0")
    status = other.status.model_copy(update={"vendor": "hygon"})
    marked.replica.news.device_changed(other.model_copy(update={"status": status}))
    await marked.pass_time(6)
    assert marked.mark == before
