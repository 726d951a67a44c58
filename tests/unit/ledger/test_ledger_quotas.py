"""The ledger counts the amounts that quotas leave to a namespace."""

from __future__ import annotations

import pytest

from builders import a_claim, a_device, a_node, a_request, a_spec, an_allocated_device, an_ask
from builders import an_allocation as allocated
from vgpu_api.config import ClusterConfig
from vgpu_api.core import ResourceQuota
from vgpu_operator.ledger import Ledger
from vgpu_operator.placement import Budget, place


def a_quota(name: str = "quota", version: int = 1, namespace: str = "default", **hard: str | int):
    return ResourceQuota.model_validate(
        {
            "metadata": {"name": name, "namespace": namespace, "resourceVersion": str(version)},
            "spec": {"hard": {f"limits.nvidia.com/{key}": value for key, value in hard.items()}},
        }
    )


def a_requests_quota(name: str = "quota", **hard: str | int):
    """Return a quota as Kubernetes itself counts it for pods."""
    hard = {f"requests.nvidia.com/{key}": value for key, value in hard.items()}
    metadata = {"name": name, "namespace": "default", "resourceVersion": "1"}
    return ResourceQuota.model_validate({"metadata": metadata, "spec": {"hard": hard}})


def a_ledger(*quotas: ResourceQuota) -> Ledger:
    ledger = Ledger(config=ClusterConfig())
    ledger.apply_node(a_node())
    for index in range(2):
        ledger.apply_device(a_device(uuid=f"GPU-{index}", index=index))
    for quota in quotas:
        ledger.apply_quota(quota)
    return ledger


def test_without_a_quota_there_is_no_limit():
    assert a_ledger().budget("default") == Budget(None, None)


@pytest.mark.parametrize(("written", "mib"), [(8000, 8000), ("8k", 8000), ("8Gi", 8192)])
def test_a_limit_is_in_mib_unless_it_is_written_in_bytes(written, mib):
    assert a_ledger(a_quota(gpumem=written)).budget("default") == Budget(mib, None)


def test_of_several_quotas_the_least_counts_whatever_their_order():
    quotas = [a_quota("a", gpumem=8000, gpucores=50), a_quota("b", gpumem=4000, gpucores=90)]
    for order in (quotas, quotas[::-1]):
        assert a_ledger(*order).budget("default") == Budget(4000, 50)


def test_a_quota_holds_in_its_own_namespace_only():
    assert a_ledger(a_quota(namespace="other", gpumem=1)).budget("default") == Budget()


def test_what_claims_hold_is_taken_off_and_given_back():
    ledger = a_ledger(a_quota(gpumem=8000, gpucores=100))
    device = an_allocated_device(memory_mib=3000, cores=40)
    ledger.apply_claim(a_claim(uid="c", allocation=allocated(device)))
    assert ledger.budget("default") == Budget(5000, 60)
    ledger.remove_claim("c")
    assert ledger.budget("default") == Budget(8000, 100)


def test_a_claim_that_is_planned_anew_is_not_in_its_own_way():
    ledger = a_ledger(a_quota(gpumem=8000))
    device = an_allocated_device(memory_mib=8000)
    ledger.apply_claim(a_claim("c", allocation=allocated(device)))
    with ledger.without(("default", "c")):
        assert ledger.budget("default") == Budget(8000, None)
    assert ledger.budget("default") == Budget(0, None)


def test_an_assumption_counts_against_the_quota_at_once():
    ledger = a_ledger(a_quota(gpumem=2000))
    spec = a_spec([a_request(memory="1000Mi", count=2)])
    demand = an_ask(*spec.requests)
    plan = place(ledger.columns, demand, budget=ledger.budget("default"))
    ledger.assume(("default", "c"), spec, plan.allocation())
    assert ledger.budget("default") == Budget(0, None)
    refused = place(ledger.columns, demand, budget=ledger.budget("default"))
    assert refused.text == "2/2 ResourceQuotaNotFit"


def test_memory_is_counted_times_the_number_of_devices():
    ledger = a_ledger(a_quota(gpumem=1999))
    two = an_ask(a_request(memory="1000Mi", count=2))
    assert place(ledger.columns, two, budget=ledger.budget("default")).refused
    one = an_ask(a_request(memory="1000Mi"))
    assert not place(ledger.columns, one, budget=ledger.budget("default")).refused


@pytest.mark.parametrize("request_fields", [{"memory_percent": 50}, {}])
def test_percentages_and_whole_devices_count_at_their_resolved_size(request_fields):
    ledger = a_ledger(a_quota(gpumem=8191))
    demand = an_ask(a_request(**request_fields))
    plan = place(ledger.columns, demand, budget=ledger.budget("default"))
    assert plan.text == "2/2 ResourceQuotaNotFit"


def test_a_limit_of_zero_lets_nothing_through():
    ledger = a_ledger(a_quota(gpumem=0))
    demand = an_ask(a_request(memory="1Mi"))
    assert place(ledger.columns, demand, budget=ledger.budget("default")).refused


def test_what_may_let_a_namespace_take_more_is_a_version_of_its_budget():
    ledger = a_ledger(a_quota(version=5, gpumem=1))

    def is_news() -> bool:
        nonlocal known
        before, known = known, ledger.budget_version("default")
        return known != before

    known = ledger.budget_version("default")
    ledger.apply_quota(a_quota(version=6, gpumem=9000))
    assert is_news()
    ledger.apply_quota(a_quota(version=5, gpumem=1))
    assert not is_news()
    assert ledger.budget("default") == Budget(9000, None)
    ledger.apply_claim(a_claim(allocation=allocated()))
    assert not is_news()
    ledger.remove_claim("uid-of-claim-1")
    assert is_news()
    ledger.remove_quota("default", "quota")
    assert is_news()
    assert ledger.budget("default") == Budget()


def test_a_limit_of_cores_alone_leaves_memory_free():
    assert a_ledger(a_quota(gpucores=50)).budget("default") == Budget(None, 50)


def test_a_limit_that_cannot_be_read_lets_nothing_through():
    ledger = a_ledger(a_quota(gpumem="much", gpucores="many"))
    assert ledger.budget("default") == Budget(0, 0)


def test_the_same_version_told_twice_is_no_news():
    ledger = a_ledger(a_quota(version=5, gpumem=9000))
    ledger.apply_quota(a_quota(version=5, gpumem=1))
    assert ledger.budget("default") == Budget(9000)


def test_a_quota_that_limits_no_devices_is_no_news_whether_it_comes_changes_or_goes():
    ledger = a_ledger()
    before = ledger.budget_version("default")
    ledger.apply_quota(a_quota())
    ledger.apply_quota(a_quota(version=2))
    ledger.remove_quota("default", "quota")
    ledger.remove_quota("default", "never-seen")
    ledger.remove_quota("a-namespace-without-any", "quota")
    assert ledger.budget_version("default") == before


def test_a_quota_made_anew_counts_though_its_version_is_an_old_one():
    """This happens after the server's data was restored."""
    ledger = a_ledger(a_quota(version=9, gpumem=9000))
    ledger.remove_quota("default", "quota")
    ledger.apply_quota(a_quota(version=3, gpumem=5000))
    assert ledger.budget("default") == Budget(5000)


def test_an_init_container_takes_of_a_quota_what_exceeds_the_app_containers():
    ledger = a_ledger(a_quota(gpumem=8000))
    init = a_request(name="prepare", phase="Init", memory="7000Mi", selector={"uuids": ["GPU-0"]})
    main = a_request(name="main", memory="8000Mi", selector={"uuids": ["GPU-0"]})
    budget = ledger.budget("default")
    assert not place(ledger.columns, an_ask(init, main), budget=budget).refused
    assert place(ledger.columns, an_ask(init, main), budget=Budget(7999)).refused


def test_what_a_claim_holds_of_several_devices_is_taken_off_together():
    ledger = a_ledger(a_quota(gpumem=8000, gpucores=100))
    devices = [an_allocated_device(uuid=f"GPU-{n}", memory_mib=1000, cores=20) for n in range(2)]
    ledger.apply_claim(a_claim(allocation=allocated(*devices)))
    assert ledger.budget("default") == Budget(6000, 60)


def test_devices_are_limited_by_requests_and_by_limits_and_the_least_counts():
    ledger = a_ledger(a_requests_quota("a", gpu=3, gpumem=8000), a_quota("b", gpu=2, gpumem=9000))
    assert ledger.budget("default") == Budget(8000, None, 2)


def test_a_claim_counts_for_as_many_devices_as_it_holds_whatever_its_pod_asks():
    ledger = a_ledger(a_requests_quota(gpu=4))
    devices = [an_allocated_device(uuid=f"GPU-{n}", memory_mib=1000) for n in range(2)]
    ledger.apply_claim(a_claim(uid="c", allocation=allocated(*devices)))
    assert ledger.budget("default") == Budget(None, None, 2)
    ledger.remove_claim("c")
    assert ledger.budget("default") == Budget(None, None, 4)


@pytest.mark.parametrize(("hard", "refused"), [(1, True), (2, False)])
def test_a_request_for_more_devices_than_the_quota_leaves_is_refused(hard, refused):
    ledger = a_ledger(a_requests_quota(gpu=hard))
    demand = an_ask(a_request(memory="1Gi", count=2))
    plan = place(ledger.columns, demand, budget=ledger.budget("default"))
    assert plan.refused == refused
    assert not refused or plan.text == "2/2 ResourceQuotaNotFit"


@pytest.mark.parametrize(("hard", "refused"), [(2, True), (3, False)])
def test_init_containers_count_for_devices_alone_and_app_containers_together(hard, refused):
    """Kubernetes counts the same: devices of three app containers, or two of an init container."""
    ledger = a_ledger(a_quota(gpu=hard))
    requests = [
        a_request(name="prepare", phase="Init", memory="1Gi", count=2),
        a_request(name="main", memory="1Gi", count=2),
        a_request(name="side", memory="1Gi"),
    ]
    plan = place(ledger.columns, an_ask(*requests), budget=ledger.budget("default"))
    assert plan.refused == refused
    if not refused:
        ledger.assume(("default", "c"), a_spec(requests), plan.allocation())
        assert ledger.budget("default") == Budget(None, None, 0)


@pytest.mark.parametrize(("hard", "refused"), [(3, True), (4, False)])
def test_an_init_container_beside_a_sidecar_counts_with_its_devices(hard, refused):
    """Kubernetes counts a pod like this: max(2 + 2, 2 + 1)."""
    ledger = a_ledger(a_quota(gpu=hard))
    requests = [
        a_request(name="side", memory="1Gi", count=2),
        a_request(name="prepare", phase="Init", memory="1Gi", count=2),
        a_request(name="main", memory="1Gi"),
    ]
    plan = place(ledger.columns, an_ask(*requests), budget=ledger.budget("default"))
    assert plan.refused == refused
    if not refused:
        ledger.assume(("default", "c"), a_spec(requests), plan.allocation())
        assert ledger.budget("default") == Budget(None, None, 0)
    else:
        assert ledger.exceeded_quotas("default", an_ask(*requests)) == [
            "exceeded quota: quota, requested: limits.nvidia.com/gpu=4, "
            "used: limits.nvidia.com/gpu=0, limited: limits.nvidia.com/gpu=3"
        ]


def test_a_refusal_names_each_quota_that_is_exceeded_with_what_is_used_and_what_is_hard():
    ledger = a_ledger(
        a_requests_quota("devices", gpu=1), a_quota("sizes", gpumem="4Gi", gpucores=50)
    )
    device = an_allocated_device(memory_mib=3000, cores=40)
    ledger.apply_claim(a_claim(uid="c", allocation=allocated(device)))
    demand = an_ask(a_request(memory="1Gi", cores=5, count=4))
    assert ledger.exceeded_quotas("default", demand) == [
        "exceeded quota: devices, requested: requests.nvidia.com/gpu=4, "
        "used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1",
        "exceeded quota: sizes, requested: limits.nvidia.com/gpumem=4096, "
        "used: limits.nvidia.com/gpumem=3000, limited: limits.nvidia.com/gpumem=4096",
        "exceeded quota: sizes, requested: limits.nvidia.com/gpucores=20, "
        "used: limits.nvidia.com/gpucores=40, limited: limits.nvidia.com/gpucores=50",
    ]
    assert ledger.exceeded_quotas("other", demand) == []


def test_of_a_percentage_it_is_not_said_how_much_it_would_be():
    ledger = a_ledger(a_quota(gpumem=8000))
    asked = ledger.exceeded_quotas("default", an_ask(a_request(memory_percent=50)))
    assert asked == [
        "exceeded quota: quota, used: limits.nvidia.com/gpumem=0, limited: "
        "limits.nvidia.com/gpumem=8000"
    ]


def test_of_a_part_it_is_not_said_how_much_memory_it_would_be():
    """The part of the device differs from node to node."""
    ledger = a_ledger(a_quota(gpumem=4000))
    for request in ({"part_size": 3}, {"part_memory": 20}, {"memory": "5Gi"}):
        demand = an_ask(a_request(vendor="enflame-drs", **request))
        assert ledger.exceeded_quotas("default", demand) == [
            "exceeded quota: quota, used: limits.nvidia.com/gpumem=0, limited: "
            "limits.nvidia.com/gpumem=4000"
        ]
