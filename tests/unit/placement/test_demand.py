"""A claim's demand with its defaults."""

from __future__ import annotations

import pytest

from builders import a_request, a_spec, an_ask
from vgpu_api.config import ClusterConfig
from vgpu_operator.demand import Demand


def config(**nvidia: int) -> ClusterConfig:
    return ClusterConfig.model_validate({"nvidia": nvidia})


def test_a_request_that_gives_no_size_takes_whole_devices_alone():
    request = an_ask(a_request(count=2)).requests[0]
    assert (request.count, request.memory_percent, request.cores) == (2, 100, 100)


def test_a_request_for_all_percent_that_names_no_cores_takes_the_device_alone():
    assert an_ask(a_request(memory_percent=100)).requests[0].cores == 100


@pytest.mark.parametrize("fields", [{"memory": "8Gi"}, {"memory_percent": 50}])
def test_a_request_for_a_part_of_the_memory_reserves_no_cores(fields):
    assert an_ask(a_request(**fields)).requests[0].cores == 0


def test_zero_cores_said_aloud_are_zero_also_for_whole_devices():
    assert an_ask(a_request(cores=0)).requests[0].cores == 0


def test_configured_cores_hold_where_a_part_of_a_device_names_none():
    request = an_ask(a_request(memory="1Gi"), config=config(default_cores=30)).requests[0]
    assert request.cores == 30


def test_configured_memory_makes_a_request_without_size_shareable():
    request = an_ask(a_request(), config=config(default_memory=2048)).requests[0]
    assert (request.memory_mib, request.memory_percent, request.cores) == (2048, None, 0)


def test_a_percentage_is_resolved_against_each_device_and_rounded_down():
    request = an_ask(a_request(memory_percent=33)).requests[0]
    assert [request.memory_on(total) for total in (16384, 32768, 10)] == [5406, 10813, 3]


def test_the_node_policy_comes_from_the_configuration_when_the_claim_is_silent():
    spread = ClusterConfig.model_validate({"scheduling": {"nodePolicy": "Spread"}})
    assert an_ask(config=spread).node_policy == "Spread"
    assert an_ask(config=spread, node="Binpack").node_policy == "Binpack"
    assert an_ask(config=spread).node_may_choose
    assert not an_ask(config=spread, node="Binpack").node_may_choose


def test_a_silent_claim_leaves_the_device_policy_to_node_and_configuration():
    assert an_ask().device_policies == ()
    assert an_ask(device=["BestFit", "Spread"]).device_policies == ("BestFit", "Spread")


def test_models_are_trimmed_lower_case_and_never_empty():
    spec = a_spec([a_request(memory="1Gi", selector={"models": [" A100 ", " "]})])
    assert Demand.of(spec, ClusterConfig()).requests[0].models == ("a100",)


def test_equal_claims_are_the_same_request_class():
    first = an_ask(a_request(memory="1Gi", selector={"uuids": ["a", "b"]}))
    second = an_ask(a_request(memory="1024Mi", selector={"uuids": ["b", "a"]}))
    assert first == second
    assert hash(first) == hash(second)
