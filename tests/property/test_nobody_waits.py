"""In virtual time, no pod that could run waits, and no large request starves."""

from __future__ import annotations

import asyncio
from itertools import cycle
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hypothesis_profiles import fewer_examples
from virtual_cluster import VirtualCluster, played
from wait_observer import LAST_BACKOFF_S

MIB = 16_384
DEVICES = {"GPU-0": ("node-1", MIB), "GPU-1": ("node-1", MIB), "GPU-2": ("node-2", MIB)}
NORMAL: dict[str, Any] = {}
ODD: list[dict[str, Any]] = [
    {"vetoed": True},
    {"vetoed": True, "volume": True},  # a volume that is never provisioned
    {"volume": True},
    {"foreign": True},
    {"nodes": frozenset()},  # CPU, a resource or a volume that no node has
    {"nodes": frozenset({"node-1"})},
    {"nodes": frozenset({"node-2"}), "is_pinned": True},  # a pod of a DaemonSet
]
PODS = st.tuples(
    st.just("pod"),
    st.tuples(
        st.integers(1, 2),
        st.sampled_from([4096, 8192, MIB]),
        st.sampled_from([0, 0, 30, 100]),
        st.sampled_from([0.5, 3.0, 12.0]),
        st.one_of(st.just(NORMAL), st.just(NORMAL), st.sampled_from(ODD)),
    ),
)
CLAIMS = st.tuples(
    st.just("claim"),
    st.tuples(
        st.integers(1, 2),
        st.sampled_from([4096, MIB]),
        st.sampled_from([0, 100]),
        st.sampled_from([3.0, 12.0]),
    ),
)
STEPS = st.lists(
    st.one_of(
        PODS,
        PODS,
        CLAIMS,
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 6.0, 30.0])),
        st.tuples(st.sampled_from(["healthy", "cordoned"]), st.sampled_from(sorted(DEVICES))),
        st.tuples(
            st.sampled_from(["open", "down", "tainted", "unschedulable"]),
            st.sampled_from(["node-1", "node-2"]),
        ),
        st.tuples(st.just("limit"), st.sampled_from([None, 8192, MIB, 3 * MIB])),
    ),
    min_size=15,
    max_size=40,
)

SEEDS = st.integers(0, 1000)
"""Seeds that decide when the engine's time slices end, so that runs interleave differently."""


async def step(cluster: VirtualCluster, what: str, how: Any) -> None:
    if what == "pod":
        devices, mib, cores, runs_s, odd = how
        cluster.create(devices, mib, cores, runs_s, **odd)
    elif what == "claim":
        cluster.create_claim(*how)
    elif what == "wait":
        await asyncio.sleep(how)
    elif what in ("healthy", "cordoned"):
        cluster.device(how, **{what: not getattr(cluster.truth[how], what)})
    elif what == "limit":
        cluster.limit(how)
    else:
        cluster.node(how, what)


PASSED_OVER = [
    ("cordoned", "GPU-0"), ("cordoned", "GPU-1"), ("healthy", "GPU-2"), ("wait", 0.1),
    ("pod", (1, 4096, 0, 0.5, NORMAL)), ("wait", 0.1),
    ("cordoned", "GPU-0"), ("wait", 0.1), ("unschedulable", "node-1"), ("wait", 6.0),
    ("healthy", "GPU-2"),
]  # fmt: skip
"""A pod gets devices on a node that closes before kube-scheduler looks; then another has room."""


@example(steps=PASSED_OVER, seed=0)
@given(steps=STEPS, seed=SEEDS)
def test_nobody_who_could_run_waits_longer_than_five_seconds_after_what_made_room(steps, seed):
    """This holds although kube-scheduler backs off and does not see the event that makes room."""

    async def play(cluster: VirtualCluster) -> None:
        for what, how in steps:
            await step(cluster, what, how)
        await asyncio.sleep(70)

    _, wait_observer = played(DEVICES, play, starvation_after_s=10, seed=seed)
    assert wait_observer.longest_s <= 5.0
    assert wait_observer.longest_in_all_s <= 5.0 + LAST_BACKOFF_S


SMALL = (1, 8192, 0)
WAITS_FOR_S, DRAINS_IN_S = 10, 8.0


def beside_a_stream(
    large: list[tuple[int, int]],
    lives: list[float],
    *,
    starvation_after_s: int,
    for_s: float,
    seed: int = 0,
) -> list[float | None]:
    """Return when each large request (devices, MiB; all cores) was served beside small ones.

    The stream of small requests never ends: whenever one goes, another already waits.
    """
    names: list[str] = []

    async def play(cluster: VirtualCluster) -> None:
        turns = cycle(lives)

        def come(_: str = "") -> None:
            cluster.create(*SMALL, next(turns))

        cluster.ended = come  # type: ignore[method-assign]
        for _ in range(MIB // SMALL[1] * len(DEVICES) + 3):
            come()
        await asyncio.sleep(5)
        names.extend(cluster.create(devices, mib, 100, 1.0) for devices, mib in large)
        await asyncio.sleep(for_s)

    cluster, _ = played(DEVICES, play, starvation_after_s=starvation_after_s, seed=seed)
    return [cluster.served_after.get(name) for name in names]


LIVES = st.lists(st.sampled_from([3.0, 5.0, DRAINS_IN_S]), min_size=1, max_size=4)


@settings(max_examples=fewer_examples(20))
@example(large=[(1, 8192)], lives=[3.0], seed=1)  # another pod took the place while it backed off
@given(
    large=st.lists(
        st.tuples(st.integers(1, 2), st.sampled_from([8192, MIB])), min_size=1, max_size=3
    ),
    lives=LIVES,
    seed=SEEDS,
)
def test_a_large_request_is_served_though_small_ones_come_without_end(large, lives, seed):
    """Each is served within the time that noticing it and freeing its devices takes."""
    turn_s = WAITS_FOR_S + DRAINS_IN_S + 5.0
    served = beside_a_stream(
        large,
        lives,
        starvation_after_s=WAITS_FOR_S,
        for_s=turn_s * len(large) + LAST_BACKOFF_S,
        seed=seed,
    )
    assert None not in served


def test_without_held_devices_the_stream_would_starve_it():
    """The test above can fail."""
    assert beside_a_stream([(2, MIB)], [3.0, 5.0], starvation_after_s=0, for_s=60) == [None]
