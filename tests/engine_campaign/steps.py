"""The steps of a campaign, and the plan that is drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from vgpu_api.resources import (
    GPU_DEVICES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    VGPU_CLAIMS,
)
from vgpu_client.errors import Gone, StreamBroken

from .machines import DEVICES, STAYS
from .world import KINDS, Traits, World

Play: TypeAlias = Callable[[World, Random], None]
MIB = (1024, 2048, 3072, 5120, 8192)
CORES = (0, 0, 0, 0, 20, 50, 100)
NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
GROUPS = ("x", "y")
PRIORITIES = (0, 0, 0, 100, 200, 1000)
APPS = ("", "", "web", "db")


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its name, the delay after the step before, and the seed of its random choices.

    `is_calm` marks the steps that are played once all faults have ended.
    """

    name: str
    after_s: float
    seed: int
    is_calm: bool = False


def _limits(rng: Random, *, devices: int = 1) -> dict[str, Any]:
    limits: dict[str, Any] = {"nvidia.com/gpu": devices}
    if rng.random() < 0.9:
        limits["nvidia.com/gpumem"] = rng.choice(MIB)
    limits["nvidia.com/gpucores"] = rng.choice(CORES)
    return limits


def _traits(rng: Random) -> Traits:
    return Traits(
        priority=rng.choice(PRIORITIES),
        never=rng.random() < 0.1,
        app=rng.choice(APPS),
        is_daemon=rng.random() < 0.1,
    )


def create_pod(world: World, rng: Random) -> None:
    """Create a pod with one container."""
    limits, traits = _limits(rng, devices=rng.choice((1, 1, 1, 2))), _traits(rng)
    world.create_pod(f"pod-{rng.choice(NAMES)}", [("app", "main", limits)], traits=traits)


def create_important_pod(world: World, rng: Random) -> None:
    """Create a pod for which others may have to be evicted."""
    traits = Traits(priority=rng.choice((1000, 1000, 2000)), never=rng.random() < 0.15)
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": rng.choice(MIB), "nvidia.com/gpucores": 0}
    world.create_pod(f"vip-{rng.choice(NAMES)}", [("app", "main", limits)], traits=traits)


def fill_all_devices(world: World, rng: Random) -> None:
    """Fill most of the free memory of each device with less important pods that never end."""
    for number, uuid in enumerate(DEVICES):
        mib = min(world.judge.free_mib(uuid), rng.choice((3072, 5120, 8192)))
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        priority, is_daemon = rng.choice((0, 100, 200)), rng.random() < 0.15
        traits = Traits(priority, app=rng.choice(APPS), is_daemon=is_daemon)
        if mib > 0:
            name = f"{STAYS}{number}-{rng.choice(NAMES)}"
            world.create_pod(name, [("app", "main", limits)], traits=traits)


def create_group(world: World, rng: Random) -> None:
    """Create a PodGroup and its pods; all its GPU pods request the same."""
    name = rng.choice(GROUPS)
    if world.pods_of(name) or world.config.scheduling.mode == "Claims":
        return  # the judge tells who starts together by Filters or by gates
    size = rng.randint(2, 4)
    least = None if rng.random() < 0.1 else rng.randint(2, size)
    limits = {
        "nvidia.com/gpu": 1,
        "nvidia.com/gpumem": rng.choice(MIB),
        "nvidia.com/gpucores": rng.choice((0, 0, 50, 100)),
    }
    priority, app = rng.choice(PRIORITIES), rng.choice(APPS)
    is_late = rng.random() < 0.2
    if not is_late:
        world.replace_group(name, least)
    for number in range(size):
        is_without = number > 0 and rng.random() < 0.1
        asks = [("app", "main", {} if is_without else limits)]
        traits = Traits(priority=priority, app=app, group=name)
        world.create_pod(f"{name}-{number}", asks, traits=traits)
    if is_late:
        world.loop.call_later(rng.choice((0.1, 5.0)), world.replace_group, name, least)


def the_scheduler_rejects_nodes(world: World, rng: Random) -> None:
    """Let kube-scheduler take allocations of ResourceClaims away, up to fifty times."""
    world.scheduler.rejections = rng.choice((1, 3, 50))


def a_resource_claim_is_deleted(world: World, rng: Random) -> None:
    """Delete a ResourceClaim as a tenant may."""
    if claims := world.server.all(RESOURCE_CLAIMS):
        world.server.remove(RESOURCE_CLAIMS, rng.choice(claims)["metadata"]["name"])


def delete_group(world: World, rng: Random) -> None:
    """Delete a group and its pods."""
    world.delete_group(rng.choice(GROUPS))


def delete_pod_of_group(world: World, rng: Random) -> None:
    """Delete one pod of a group; the others stay."""
    name = rng.choice(GROUPS)
    if pods := world.pods_of(name):
        world.delete_pod(rng.choice(pods))


def set_budget(world: World, rng: Random) -> None:
    """Protect an app's pods from evictions, or end that protection."""
    world.set_budget(rng.choice(APPS[2:]), rng.choice((None, 0, 1, 1, 2, 5)))


def the_leader_is_killed_at_a_write(world: World, rng: Random) -> None:
    """Kill the leader between two evictions, or between two Bindings of a group."""
    world.kill_at = rng.choice(("eviction", "binding"))


def the_leader_is_killed_at_a_hand_over(world: World, rng: Random) -> None:
    """Kill the leader between the writes of a VGPUClaim and its ResourceClaim."""
    world.kill_at = rng.choice(("decision", "creation", "allocation"))


def create_pods(world: World, rng: Random) -> None:
    """Create several pods at once."""
    for _ in range(rng.randint(2, 4)):
        create_pod(world, rng)


def create_pod_for_the_rest(world: World, rng: Random) -> None:
    """Create a pod that requests the free part of a device, or a little more."""
    free = world.judge.free_mib(rng.choice(sorted(DEVICES)))
    if free > 1:
        mib = free + rng.choice((0, 1, 100))
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib, "nvidia.com/gpucores": 0}
        world.create_pod(f"pod-{rng.choice(NAMES)}", [("app", "main", limits)], traits=_traits(rng))


def create_pod_with_init(world: World, rng: Random) -> None:
    """Create a pod with ordinary init containers and sidecars, in any order."""
    asks = [
        (rng.choice(("init", "sidecar")), f"i{number}", _limits(rng))
        for number in range(rng.randint(1, 3))
    ]
    world.create_pod(
        f"pod-{rng.choice(NAMES)}", [*asks, ("app", "main", _limits(rng))], traits=_traits(rng)
    )


def create_claim(world: World, rng: Random) -> None:
    """Create a user's claim."""
    mode = rng.choice(("Immediate", "WaitForFirstConsumer"))
    world.create_claim(f"claim-{rng.choice(NAMES)}", rng.choice(MIB), rng.choice(CORES), mode=mode)


def create_pod_of_claim(world: World, rng: Random) -> None:
    """Create a pod that names a claim, which may or may not exist."""
    if rng.random() < 0.5:
        create_claim(world, rng)
    claim = f"claim-{rng.choice(NAMES)}"
    world.create_pod(f"native-{rng.choice(NAMES)}", [("app", "main", {})], claim=claim)


def resize(world: World, rng: Random) -> None:
    """Change the amounts of a claim, usually of one whose pod has a node."""
    claims = [claim for claim in world.server.claims() if _is_resizable(world, claim)]
    if claims:
        name = rng.choice(claims).metadata.name
        world.edit_claim(name, rng.choice(MIB), rng.choice(CORES))


def resize_and_use(world: World, rng: Random) -> None:
    """Change a claim that has devices and no pod, and create a pod for it at once."""
    idle = [
        claim.metadata.name
        for claim in world.server.claims()
        if claim.status.allocation is not None and claim.status.reserved_for is None
    ]
    if idle:
        name = rng.choice(idle)
        world.edit_claim(name, rng.choice(MIB), rng.choice(CORES))
        world.create_pod(f"native-{rng.choice(NAMES)}", [("app", "main", {})], claim=name)


def _is_resizable(world: World, claim: Any) -> bool:
    """True unless it is a pod's own claim: that follows the pod until the pod has its node."""
    if not claim.metadata.owner_references:
        return True
    reserved = claim.status.reserved_for
    return any(
        reserved is not None
        and pod["metadata"]["uid"] == reserved.pod_uid
        and pod["spec"].get("nodeName")
        for pod in world.server.all(PODS)
    )


def delete_claim(world: World, rng: Random) -> None:
    """Delete a user's claim."""
    world.server.remove(VGPU_CLAIMS, f"claim-{rng.choice(NAMES)}")


def delete_pod(world: World, rng: Random) -> None:
    """Delete a pod with its grace period."""
    if pods := world.server.all(PODS):
        name = rng.choice(pods)["metadata"]["name"]
        world.delete_pod(name, lives_s=rng.choice((1.0, 3.0, 20.0)))


def delete_pod_by_force(world: World, rng: Random) -> None:
    """Delete a pod by force; its processes outlive it."""
    if pods := world.server.all(PODS):
        name = rng.choice(pods)["metadata"]["name"]
        world.delete_pod(name, by_force=True, lives_s=rng.choice((1.0, 5.0, 40.0)))


def make_sandbox_anew(world: World, rng: Random) -> None:
    """Run init containers again."""
    if processes := list(world.machines.processes()):
        world.machines.make_sandbox_anew(rng.choice(processes))


def bind_past_us(world: World, rng: Random) -> None:
    """Bind a pod as another scheduler, often one with devices reserved on another node."""
    pods = [pod for pod in world.server.all(PODS) if not pod["spec"].get("nodeName")]
    reserved = {
        claim.status.reserved_for.pod_uid
        for claim in world.server.claims()
        if claim.status.reserved_for is not None
    }
    if offered := [pod for pod in pods if pod["metadata"]["uid"] in reserved]:
        pods = offered
    if pods:
        node = rng.choice(sorted(world.machines.of))
        world.bind_past_us(rng.choice(pods)["metadata"]["name"], node)


def set_quota(world: World, rng: Random) -> None:
    """Set a smaller quota, a larger one, or none."""
    world.set_quota(rng.choice((None, None, None, 4096, 10240, 20480)))


def a_stream_is_late(world: World, rng: Random) -> None:
    """Delay the stream of one kind."""
    if world.leader is not None:
        seconds = rng.choice((1.0, 5.0, 15.0, 40.0))
        kind = _kind(rng)
        if kind in (NODES.plural, GPU_DEVICES.plural):
            seconds = min(seconds, 15.0)
        world.leader.line.stream(kind).late_until = world.now + seconds


def a_stream_is_lost(world: World, rng: Random) -> None:
    """Lose the stream of one kind or of all; it is listed again after a 410, or resumed."""
    if world.leader is not None:
        gone = rng.random() < 0.5
        for kind in KINDS if rng.random() < 0.2 else (_kind(rng),):
            error = Gone("compacted", status=410) if gone else StreamBroken("broken")
            world.leader.line.lose(kind, error)


def _kind(rng: Random) -> str:
    kinds = (PODS, PODS, PODS, VGPU_CLAIMS, VGPU_CLAIMS, NODES, GPU_DEVICES, RESOURCE_QUOTAS)
    return rng.choice(kinds).plural


def requests_fail(world: World, rng: Random) -> None:
    """Let requests fail with 500 or 429 before anything is done."""
    if rng.random() < 0.7:
        world.faults.refused += rng.randint(1, 4)
    else:
        world.faults.busy += rng.randint(1, 7)


def answers_are_lost(world: World, rng: Random) -> None:
    """Lose answers after the commit: 500 or nothing."""
    world.faults.lost += rng.randint(1, 4)


def reads_fail(world: World, rng: Random) -> None:
    """Let reads fail with 500."""
    world.faults.unread += rng.randint(1, 6)


def requests_take_long(world: World, rng: Random) -> None:
    """Delay requests; some land after their sender has given up or was killed."""
    world.faults.slow_until = world.now + rng.choice((2.0, 10.0))


def the_line_is_cut(world: World, rng: Random) -> None:
    """Cut the connection, sometimes for longer than the lease."""
    world.faults.cut_until = world.now + rng.choice((1.0, 4.0, 12.0))


def the_leader_is_killed(world: World, rng: Random) -> None:
    """Kill the leader; requests that it has sent land later."""
    if rng.random() < 0.5:
        requests_take_long(world, rng)
    world.loop.call_later(rng.uniform(0.0, 1.0), world.kill_the_leader)


def a_node_is_registered_anew(world: World, rng: Random) -> None:
    """Delete a node and register it again; its containers keep running."""
    name = rng.choice(sorted(world.machines.of))
    if world.machines.of[name].is_up:
        _hide_some(world, rng, name)
        world.machines.unregister(name)
        world.loop.call_later(rng.choice((0.1, 5.0, 15.0)), world.machines.register, name)


def a_machine_dies(world: World, rng: Random) -> None:
    """Let a machine die; its Node is deleted later and comes back with another UID."""
    name = rng.choice(sorted(world.machines.of))
    if world.machines.of[name].is_up:
        world.machines.die(name)
        goes = rng.choice((2.0, 20.0))
        world.loop.call_later(goes, world.machines.unregister, name)
        world.loop.call_later(goes + rng.choice((5.0, 70.0)), world.machines.register, name)


def _hide_some(world: World, rng: Random, node: str) -> None:
    for uuid, (of, _) in DEVICES.items():
        if of == node and rng.random() < 0.3:
            _hide(world, uuid, rng.choice((2.0, 30.0)))


def _hide(world: World, uuid: str, seconds: float) -> None:
    world.machines.hide(uuid)
    machine = world.machines.of[DEVICES[uuid][0]]
    world.loop.call_later(seconds, machine.hidden.discard, uuid)


def a_device_goes(world: World, rng: Random) -> None:
    """Remove a device and bring it back."""
    _hide(world, rng.choice(sorted(DEVICES)), rng.choice((2.0, 30.0)))


def a_device_is_ill(world: World, rng: Random) -> None:
    """Make a device ill for a while."""
    uuid = rng.choice(sorted(DEVICES))
    machine = world.machines.of[DEVICES[uuid][0]]
    machine.ill.add(uuid)
    world.loop.call_later(rng.choice((15.0, 60.0)), machine.ill.discard, uuid)


def an_agent_is_silent(world: World, rng: Random) -> None:
    """Stop an agent for a while, sometimes until its devices count as unknown."""
    machine = world.machines.of[rng.choice(sorted(world.machines.of))]
    if machine.agent_silent_until < world.now - 60.0:
        machine.agent_silent_until = world.now + rng.choice((10.0, 40.0))


def an_agents_pods_are_late(world: World, rng: Random) -> None:
    """Delay an agent's watch of pods, by which it learns of resizes and of its devices."""
    machine = world.machines.of[rng.choice(sorted(world.machines.of))]
    machine.pods_late_until = world.now + rng.choice((3.0, 20.0, 60.0))


def a_backup_is_made(world: World, rng: Random) -> None:
    """Back up all data."""
    world.server.back_up()


def a_backup_is_restored(world: World, rng: Random) -> None:
    """Restore a backup, with a higher revision."""
    if world.server.has_backup:
        world.restore()


def time_passes(world: World, rng: Random) -> None:
    """Let a long time pass without any step."""


STEPS: dict[str, tuple[int, Play]] = {
    play.__name__: (weight, play)
    for weight, play in (
        (10, create_pod), (6, create_pods), (10, create_pod_with_init),
        (8, create_pod_for_the_rest), (4, create_claim), (5, create_pod_of_claim), (5, resize),
        (4, resize_and_use),
        (4, delete_claim), (4, delete_pod), (6, delete_pod_by_force), (3, make_sandbox_anew),
        (3, bind_past_us), (3, set_quota), (7, a_stream_is_late), (4, a_stream_is_lost),
        (3, requests_fail), (5, answers_are_lost), (3, reads_fail), (4, requests_take_long),
        (1, the_line_is_cut), (3, the_leader_is_killed), (2, a_node_is_registered_anew),
        (1, a_machine_dies), (2, a_device_goes), (1, a_device_is_ill), (2, an_agent_is_silent),
        (3, an_agents_pods_are_late),
        (1, a_backup_is_made), (1, a_backup_is_restored), (3, time_passes),
        (6, create_important_pod), (1, fill_all_devices), (6, create_group), (2, delete_group),
        (2, delete_pod_of_group), (3, set_budget), (2, the_leader_is_killed_at_a_write),
        (3, the_leader_is_killed_at_a_hand_over), (3, the_scheduler_rejects_nodes),
        (2, a_resource_claim_is_deleted),
    )
}  # fmt: skip
"""The weight of each step."""

CALM_STEPS: dict[str, int] = {
    play.__name__: weight
    for weight, play in (
        (3, create_pod), (1, create_pod_with_init), (2, create_pod_for_the_rest),
        (8, create_important_pod), (4, fill_all_devices), (5, create_group), (1, delete_group),
        (3, delete_pod), (1, set_budget), (1, time_passes), (3, resize),
    )
}  # fmt: skip
"""The weight of each step that may be played when all faults have ended."""


def plan(seed: int, length: int, calm: int) -> list[Step]:
    """Draw the steps of a run: first the steps with faults, then calm ones."""
    rng = Random(f"plan {seed}")
    names, weights = list(STEPS), [weight for weight, _ in STEPS.values()]
    found = [
        Step(
            rng.choices(names, weights)[0],
            rng.choice((0.0, 0.05, 0.3, 1.0, 3.0)),
            rng.randrange(2**32),
        )
        for _ in range(length)
    ]
    names, weights = list(CALM_STEPS), list(CALM_STEPS.values())
    for _ in range(calm):
        name, after_s = rng.choices(names, weights)[0], rng.choice((0.0, 1.0, 4.0, 10.0))
        found.append(Step(name, after_s, rng.randrange(2**32), is_calm=True))
    return found


def play(step: Step, world: World) -> None:
    """Play one step."""
    world.note(f"step {step.name}")
    STEPS[step.name][1](world, Random(step.seed))
