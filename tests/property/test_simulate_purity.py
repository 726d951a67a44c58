"""A simulation changes neither the known state of the cluster nor the next answer."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import a_request, a_spec
from vgpu_operator.insight.documents import read_state
from vgpu_operator.insight.offline_cluster import Cluster
from vgpu_operator.insight.question import Question, question_of
from vgpu_operator.insight.simulate import answer

ANY_CLAIM = Question(a_spec([a_request()]), "default", None)
MIG = {
    "profiles": [
        {"name": name, "memoryMiB": mib, "cores": cores, "slices": size,
         "placements": [{"start": start, "size": size} for start in starts]}
        for name, mib, cores, size, starts in (
            ("1g.5gb", 4864, 14, 1, range(7)), ("3g.20gb", 19_968, 42, 4, (0, 4)))
    ]
}  # fmt: skip
POLICIES = (
    *("Binpack", "Spread", "BestFit", "IdleFirst", "NUMAFirst", "NUMA", "Mutex", "Topology"),
    "Fragmentation",
)


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    """Draw up to four nodes of up to three devices, some partitioned, and perhaps a quota."""
    nodes = [
        {
            "name": f"n{at}",
            "devices": [
                {
                    "uuid": f"GPU-{at}-{index}",
                    "memoryMiB": 40_960,
                    "memoryUsedMiB": draw(st.sampled_from((0, 0, 8192))),
                    "slotsUsed": draw(st.sampled_from((0, 0, 1))),
                    "numa": draw(st.sampled_from((-1, 0, 1))),
                    **({"mig": MIG} if draw(st.booleans()) else {}),
                }
                for index in range(draw(st.integers(0, 3)))
            ],
        }
        for at in range(draw(st.integers(0, 4)))
    ]
    limit = draw(st.sampled_from((None, None, 0, 10_000, 45_000)))
    quotas = [{"namespace": "default", "hard": {"limits.nvidia.com/gpumem": limit}}]
    return {"nodes": nodes, "quotas": quotas if limit is not None else []}


@st.composite
def claims(draw: st.DrawFn) -> dict[str, Any]:
    requests = [
        {
            "name": f"c{number}",
            "phase": draw(st.sampled_from(("App", "App", "Init"))),
            "count": draw(st.integers(1, 3)),
            "cores": draw(st.sampled_from((0, 30, 100))),
            "memory": draw(st.sampled_from(("1Gi", "15Gi", "40Gi"))),
        }
        for number in range(draw(st.integers(1, 3)))
    ]
    placement = {
        "node": draw(st.sampled_from(("Binpack", "Spread", "NUMAFirst", "Fragmentation"))),
        "device": draw(st.lists(st.sampled_from(POLICIES), max_size=2, unique=True)),
        "numa": draw(st.sampled_from(("None", "Prefer", "Require"))),
    }
    spec = {"requests": requests, "placement": placement}
    return {"kind": "VGPUClaim", "metadata": {"name": "x"}, "spec": spec}


def known(cluster: Cluster) -> Any:
    columns = cluster.columns
    devices = sorted(columns.number_of(f"GPU-{at}-{i}") for at, i in placed_at(cluster))
    sums = (columns.node_slots_used, columns.node_cores_used, columns.node_memory_used)
    return (
        columns.state(),
        [columns.in_use(device) for device in devices],
        [list(amounts) for amounts in sums],
        list(columns.rankings.version),
        cluster.budget(ANY_CLAIM),
        cluster.utilisation(),
    )


def placed_at(cluster: Cluster) -> list[tuple[int, int]]:
    columns = cluster.columns
    uuids = [columns.uuid[c] for n in columns.nodes_with_devices() for c in columns.node_devices[n]]
    return [(int(at), int(index)) for _, at, index in (uuid.split("-") for uuid in uuids)]


@given(state=states(), asked=st.lists(claims(), min_size=1, max_size=3))
def test_however_often_something_is_asked_nothing_changes_and_the_answer_stays(state, asked):
    cluster = Cluster(read_state(state, source="state"), source="state")
    before = known(cluster)
    first = [answer(question_of(claim, cluster, admit=False), cluster) for claim in asked]
    assert known(cluster) == before
    again = [answer(question_of(claim, cluster, admit=False), cluster) for claim in asked]
    assert again == first
    fresh = Cluster(read_state(state, source="state"), source="state")
    alone = [answer(question_of(claim, fresh, admit=False), fresh) for claim in reversed(asked)]
    assert [result for result, _ in reversed(alone)] == [result for result, _ in first]
