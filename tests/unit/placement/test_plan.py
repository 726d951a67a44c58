"""A plan for a claim has a node with devices, or the reasons of a refusal."""

from __future__ import annotations

import pytest

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_api.reasons import Reason, Tally
from vgpu_api.v1alpha1 import AllocatedDevice, Allocation
from vgpu_operator.placement import Grant, NodeFilter, in_words, place, refusals_on
from vgpu_operator.placement.columns import NodeState


def two_nodes(used=None, states=None):
    """Return node a with device GPU-a and node b with device GPU-b."""
    return some_columns(
        device_facts("GPU-b", node="b"), device_facts("GPU-a", node="a"), used=used, states=states
    )


ON_B = {"GPU-b": Use(1000, 0, 1)}
SMALL = a_request(memory="1Gi")


def test_binpack_takes_the_fuller_node_and_spread_the_emptier():
    columns = two_nodes(ON_B)
    assert place(columns, an_ask(SMALL, node="Binpack")).node == "b"
    assert place(columns, an_ask(SMALL, node="Spread")).node == "a"


@pytest.mark.parametrize("policy", ["Binpack", "Spread", "NUMAFirst"])
def test_equal_nodes_are_decided_by_name(policy):
    assert place(two_nodes(), an_ask(SMALL, node=policy)).node == "a"


def test_a_fuller_node_that_cannot_serve_gives_way_and_says_why():
    columns = two_nodes({"GPU-b": Use(16000, 0, 1)})
    plan = place(columns, an_ask(SMALL))
    assert plan.node == "a"
    assert in_words(refusals_on(columns, an_ask(SMALL), ["a", "b"])) == {
        "b": "1/1 CardInsufficientMemory"
    }


def test_a_refusal_is_explained_as_it_is_when_somebody_reads_it_first():
    columns = two_nodes({"GPU-b": Use(16000, 0, 1)})
    plan = place(columns, an_ask(SMALL), ["b"])
    columns.set_used(columns.number_of("gpu-b"), slots=10, cores=0, memory=0)
    told = plan.refusals["b"]
    assert str(told) == "1/1 CardTimeSlicingExhausted"
    columns.set_used(columns.number_of("gpu-b"), slots=0, cores=0, memory=0)
    assert plan.refusals["b"] is told


def test_a_grant_names_the_device_and_what_the_request_means_on_it():
    plan = place(two_nodes(), an_ask(a_request(name="main", memory_percent=25, cores=10)))
    assert plan.grants == (Grant("main", "gpu-a", "GPU-a", 0, 4096, 10, of_mib=16_384),)


def test_only_candidates_are_considered_and_unknown_ones_are_refused():
    plan = place(two_nodes(), an_ask(SMALL), ["b", "nowhere"])
    assert plan.node == "b"
    assert in_words(place(two_nodes(), an_ask(SMALL), ["nowhere"]).refusals) == {
        "nowhere": "1/1 NodeInsufficientDevice"
    }


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (NodeState(ready=False), Reason.NODE_NOT_READY),
        (NodeState(ready=True, schedulable=False), Reason.NODE_UNSCHEDULABLE),
    ],
)
def test_a_node_that_takes_no_pods_gets_none(state, reason):
    plan = place(two_nodes(states={"a": state, "b": state}), an_ask(SMALL))
    assert plan.refused
    assert plan.reason is reason
    assert plan.text == f"2/2 {reason}"


def test_no_nodes_at_all_is_a_reason_too():
    plan = place(some_columns(), an_ask(SMALL))
    assert (plan.refused, plan.reason, plan.text) == (True, Reason.NO_GPU_NODES, "NoGPUNodes")


def test_reasons_of_devices_and_of_nodes_are_counted_apart():
    columns = some_columns(
        device_facts("a0", node="a"),
        device_facts("a1", node="a", index=1, cordoned=True),
        device_facts("b0", node="b"),
        states={"b": NodeState(ready=False)},
    )
    plan = place(columns, an_ask(a_request(memory="64Gi")))
    assert plan.text == "1/2 CardCordoned, 1/2 CardInsufficientMemory, 1/2 NodeNotReady"


def test_reasons_stand_in_the_order_of_their_text_wherever_they_come_from():
    devices = [
        *(device_facts(f"a{at}", node="a", index=at, cordoned=at == 0) for at in range(3)),
        *(device_facts(f"b{at}", node=f"b{at}") for at in range(3)),
    ]
    states = {f"b{at}": NodeState(ready=False) for at in range(3)}
    plan = place(some_columns(*devices, states=states), an_ask(a_request(memory="64Gi")))
    assert plan.text == "1/3 CardCordoned, 2/3 CardInsufficientMemory, 3/4 NodeNotReady"
    one_less = {name: state for name, state in states.items() if name == "b0"}
    plan = place(
        some_columns(*devices[:4], states=one_less),
        an_ask(a_request(memory="64Gi")),
    )
    assert plan.text == "1/2 NodeNotReady, 1/3 CardCordoned, 2/3 CardInsufficientMemory"


def test_app_containers_of_a_claim_add_up_on_a_device():
    requests = [a_request(name=name, memory="9Gi") for name in ("a", "b")]
    refused = place(some_columns(device_facts()), an_ask(*requests))
    assert refused.text == "1/1 CardInsufficientMemory"
    assert {grant.uuid for grant in place(two_devices(), an_ask(*requests)).grants} == {"x", "y"}


def two_devices():
    return some_columns(device_facts("x"), device_facts("y", index=1))


def test_all_requests_are_on_one_node_or_nowhere():
    requests = [a_request(name=name, memory="16Gi") for name in ("a", "b")]
    assert place(two_nodes(), an_ask(*requests)).refused


def test_init_containers_are_fitted_on_the_state_before_the_pod():
    requests = [
        a_request(name="prepare", memory="16Gi", phase="Init"),
        a_request(name="main", memory="9Gi"),
    ]
    plan = place(some_columns(device_facts()), an_ask(*requests))
    assert [(grant.request, grant.memory_mib) for grant in plan.grants] == [
        ("prepare", 16384),
        ("main", 9216),
    ]


@pytest.mark.parametrize(
    ("first", "then", "fits"),
    [
        ({"memory": "4Gi"}, {"memory": "12Gi"}, True),
        ({"memory": "4Gi"}, {"memory": "12289Mi"}, False),
        ({"memory": "1Gi", "cores": 40}, {"memory": "1Gi", "cores": 60}, True),
        ({"memory": "1Gi", "cores": 40}, {"memory": "1Gi", "cores": 61}, False),
        ({"memory": "1Gi"}, {"memory": "1Gi", "cores": 100}, False),
        ({"memory": "1Gi", "cores": 100}, {"memory": "1Gi"}, False),
    ],
)
def test_an_init_container_is_fitted_beside_the_sidecar_that_was_started_before_it(
    first, then, fits
):
    """A T4 has 16 GiB; the app container can use the part of the init container that has ended."""
    side, prepare = a_request(name="side", **first), a_request(name="prep", phase="Init", **then)
    main = a_request(name="main", memory="1Gi")
    assert place(some_columns(device_facts()), an_ask(side, prepare)).refused != fits
    assert place(some_columns(device_facts()), an_ask(prepare, side)).refused is False
    beside = place(two_devices(), an_ask(side, prepare, main))
    assert not beside.refused
    assert fits or len({grant.uuid for grant in beside.grants[:2]}) == 2


def test_init_containers_and_sidecars_need_a_slot_each_only_while_they_run():
    side, main = a_request(name="side", memory="1Gi"), a_request(name="main", memory="1Gi")
    inits = [a_request(name=f"i{number}", memory="1Gi", phase="Init") for number in range(3)]
    assert not place(some_columns(device_facts(slots=2)), an_ask(side, *inits, main)).refused
    assert place(some_columns(device_facts(slots=1)), an_ask(side, *inits)).refused
    assert not place(some_columns(device_facts(slots=1)), an_ask(*inits, main)).refused


def test_a_request_for_the_device_alone_keeps_the_pods_other_containers_off_it():
    requests = [
        a_request(name="alone", memory="1Gi", cores=100),
        a_request(name="other", memory="1Gi", cores=50),
    ]
    assert place(some_columns(device_facts(cores=200)), an_ask(*requests)).refused
    assert not place(two_devices(), an_ask(*requests)).refused


def test_the_nodes_own_device_policy_holds_unless_the_claim_has_one():
    devices = [device_facts("idle"), device_facts("used", index=1)]
    columns = some_columns(
        *devices,
        used={"used": Use(1000, 10, 1)},
        states={devices[0].node: NodeState(ready=True, device_policies=("Binpack",))},
    )
    assert place(columns, an_ask(SMALL)).grants[0].uuid == "used"
    assert place(columns, an_ask(SMALL, device=["Spread"])).grants[0].uuid == "idle"


def test_a_nodes_own_place_among_nodes_holds_unless_the_claim_has_one():
    """Its policy puts it before empty nodes, to be filled, or after them, to be spared."""
    filling = two_nodes(ON_B, {"b": NodeState(ready=True, node_policy="Binpack")})
    sparing = two_nodes(ON_B, {"b": NodeState(ready=True, node_policy="Spread")})
    assert place(filling, an_ask(SMALL)).node == "b"
    assert place(sparing, an_ask(SMALL)).node == "a"
    assert place(sparing, an_ask(SMALL, node="Binpack")).node == "b"


def test_a_node_that_puts_numa_first_stands_behind_others_where_it_cannot():
    def devices(node: str, *numas: int):
        return [device_facts(f"{node}{i}", node=node, index=i, numa=n) for i, n in enumerate(numas)]

    first = NodeState(ready=True, node_policy="NUMAFirst")
    columns = some_columns(*devices("a", 0, 1, 1), *devices("b", 0, 1), states={"a": first})
    two, three = (a_request(count=count, memory="1Gi") for count in (2, 3))
    assert [grant.uuid for grant in place(columns, an_ask(two)).grants] == ["a2", "a1"]
    assert place(columns, an_ask(three)).node == "a"
    columns.put_node("b", first)
    columns.put_node("a", NodeState(ready=False))
    columns.put_device(device_facts("c0", node="c"))
    columns.put_device(device_facts("c1", node="c", index=1))
    columns.put_node("c", NodeState(ready=True))
    assert place(columns, an_ask(two)).node == "c"
    assert place(columns, an_ask(two, node="Binpack")).node == "b"


def test_numa_first_prefers_the_node_that_serves_within_one_numa_node():
    def devices(node: str, *numas: int):
        return [device_facts(f"{node}{i}", node=node, index=i, numa=n) for i, n in enumerate(numas)]

    columns = some_columns(*devices("a", 0, 1), *devices("b", 1, 1))
    two = a_request(count=2, memory="1Gi")
    assert place(columns, an_ask(two, node="NUMAFirst")).node == "b"
    assert place(columns, an_ask(two, node="NUMAFirst"), ["a"]).node == "a"
    assert place(columns, an_ask(two, node="Binpack")).node == "a"


def test_an_allocation_is_the_plan_in_the_apis_words():
    columns = some_columns(device_facts("GPU-a", node="a", index=3))
    request = a_request(name="main", memory="1Gi", cores=30)
    allocation = place(columns, an_ask(request)).allocation()
    assert allocation == Allocation(
        node_name="a",
        devices=[
            AllocatedDevice(
                request="main", name="gpu-a", uuid="GPU-a", index=3, memory="1Gi", cores=30
            )
        ],
    )


def test_refusals_are_put_into_words_node_by_node():
    full = place(two_nodes(ON_B), an_ask(a_request(memory="16Gi", count=2)))
    assert in_words(full.refusals) == {
        "a": "1/1 NodeInsufficientDevice",
        "b": "1/1 NodeInsufficientDevice",
    }
    mixed = place(two_nodes({"GPU-b": Use(0, 0, 10)}), an_ask(a_request(memory="32Gi")))
    assert in_words(mixed.refusals) == {
        "a": "1/1 CardInsufficientMemory",
        "b": "1/1 CardTimeSlicingExhausted",
    }


@pytest.mark.parametrize(
    ("candidates", "barred", "node"),
    [
        (None, (), "a"),
        (None, ("a",), "b"),
        (("b",), (), "b"),
        (("a", "b"), ("a",), "b"),
        (("a",), ("a",), None),
        (None, ("a", "b"), None),
    ],
)
@pytest.mark.parametrize("more", [0, 30])
def test_nodes_that_the_caller_rules_out_get_nothing_and_keep_their_reason(
    candidates, barred, node, more
):
    """The result is the same with few or many candidates, because the others have no room."""
    full = [device_facts(f"GPU-x{at}", node=f"x{at}", memory_mib=100) for at in range(more)]
    columns = some_columns(device_facts("GPU-b", node="b"), device_facts("GPU-a", node="a"), *full)
    if candidates is not None:
        candidates = [*candidates, *(f"x{at}" for at in range(more))]
    reason = Tally({Reason.NODE_TAINTED: 1}, 1)
    nodes = NodeFilter(taints=~sum(1 << columns.node_id(name) for name in barred))
    plan = place(columns, an_ask(SMALL), candidates, nodes=nodes)
    assert plan.node == node
    if plan.refused:
        assert {name for name, tally in plan.refusals.items() if tally == reason} == set(barred)


def test_several_devices_are_the_best_ones_and_not_just_the_last():
    used = {"x": Use(8000, 0, 1), "y": Use(12000, 0, 1)}
    devices = [device_facts(uuid, index=index) for index, uuid in enumerate("xyzw")]
    plan = place(
        some_columns(*devices, used=used),
        an_ask(a_request(memory="1Gi", count=2), device=["BestFit"]),
    )
    assert [grant.uuid for grant in plan.grants] == ["y", "x"]


@pytest.mark.parametrize(("numas", "device"), [((0, 0, 1), "GPU-2"), ((0, 1, 1), "GPU-0")])
def test_one_device_with_numa_preferred_leaves_the_emptier_numa_node_whole(numas, device):
    devices = [device_facts(f"GPU-{at}", index=at, numa=numa) for at, numa in enumerate(numas)]
    plan = place(some_columns(*devices), an_ask(SMALL, numa="Prefer"))
    assert [grant.uuid for grant in plan.grants] == [device]


def test_what_one_request_learned_of_kinds_of_devices_is_not_taken_for_anothers():
    devices = [device_facts("old", model="tesla t4"), device_facts("new", index=1, model="a100")]
    columns = some_columns(*devices)
    for _ in range(2):
        for model, device in (("T4", "old"), ("A100", "new")):
            demand = an_ask(a_request(memory="1Gi", selector={"models": [model]}))
            assert [grant.uuid for grant in place(columns, demand).grants] == [device]


def test_a_refusal_allocates_nothing():
    with pytest.raises(ValueError, match=r"^a refusal allocates nothing$"):
        place(some_columns(), an_ask(SMALL)).allocation()
