"""A class of requests that remembers only its best nodes decides like one without memory."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.placement import best_node, place, ranking_cache

NODES = tuple(f"node-{number}" for number in range(8))
DEVICE_MIB = 10

changes = st.tuples(st.integers(0, 7), st.integers(0, DEVICE_MIB))
"""A node, and the use of its device from now on."""


@given(
    st.sampled_from(("Binpack", "Spread", "Fragmentation")),
    st.lists(
        st.tuples(st.lists(changes, max_size=3), st.none() | st.sets(st.sampled_from(NODES))),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(((1, 0), (2, 3), (3, 9))),
)
def test_what_is_cut_off_a_ranking_is_found_again_when_it_is_wanted(policy, steps, heap):
    """After every change and for any candidates, the live columns answer like new ones."""
    demand = an_ask(a_request(memory="3Mi"), node=policy)
    used = dict.fromkeys(range(8), 0)
    devices = [
        device_facts(f"GPU-{node}", node=NODES[node], memory_mib=DEVICE_MIB) for node in used
    ]
    live = some_columns(*devices)
    live.mix.observe(demand)
    best, long = heap
    with (
        mock.patch.multiple(best_node, _FEW=0, _FAR=2),
        mock.patch.object(best_node, "BEST", best),
        mock.patch.multiple(ranking_cache, BEST=best, _LONG=long),
    ):
        for changed, candidates in steps:
            for node, memory in changed:
                used[node] = memory
                live.set_used(node, slots=int(memory > 0), cores=0, memory=memory)
            new = some_columns(
                *devices,
                used={f"GPU-{node}": Use(memory, 0, 1) for node, memory in used.items() if memory},
            )
            new.mix.observe(demand)
            was, is_ = place(live, demand, candidates), place(new, demand, candidates)
            assert (was.node, was.grants) == (is_.node, is_.grants)
            if was.refused:
                assert was.text == is_.text
