"""The figures of `make bench-cluster`."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from perf.cluster_bench.measures import (
    Used,
    cpu_per_pod,
    ended,
    longest_gap,
    peaks_mib,
    per_pod,
    rates,
    requests,
    summarized,
    used,
)

pytestmark = pytest.mark.scale


def a_sample(verb: str, resource: str, value: float, **labels: str) -> str:
    given = {"code": "200", "subresource": "", **labels, "resource": resource, "verb": verb}
    text = ",".join(f'{name}="{value}"' for name, value in given.items())
    return f"apiserver_request_total{{{text}}} {value:g}\n"


def test_requests_of_every_code_are_added_up_by_verb_and_resource() -> None:
    metrics = a_sample("POST", "pods", 3, code="201") + a_sample("POST", "pods", 2, code="429")
    assert requests(metrics) == {("POST", "pods"): 5}


def test_a_subresource_is_counted_beside_its_resource() -> None:
    metrics = a_sample("PATCH", "pods", 1) + a_sample("PATCH", "pods", 4, subresource="status")
    assert requests(metrics) == {("PATCH", "pods"): 1, ("PATCH", "pods/status"): 4}


def test_watches_and_what_is_no_resource_are_not_counted() -> None:
    metrics = a_sample("WATCH", "pods", 7) + a_sample("GET", "", 9)
    assert requests("# HELP apiserver_request_total\n" + metrics) == {}


def test_values_in_the_exponential_form_are_read() -> None:
    line = 'apiserver_request_total{resource="pods",subresource="",verb="GET"} 1.5e+06\n'
    assert requests(line) == {("GET", "pods"): 1_500_000}


def test_requests_a_pod_are_what_came_between_two_readings() -> None:
    before = {("POST", "pods"): 10.0, ("GET", "nodes"): 3.0}
    after = {("POST", "pods"): 20.0, ("GET", "nodes"): 3.0, ("PATCH", "pods/status"): 5.0}
    assert per_pod(before, after, 10) == {
        "total": 1.5,
        "POST pods": 1.0,
        "PATCH pods/status": 0.5,
    }


def test_leases_are_no_pods_cost() -> None:
    assert per_pod({}, {("PUT", "leases"): 100.0}, 10) == {"total": 0}


def test_the_rate_of_the_middle_leaves_a_slow_last_pod_out() -> None:
    bound_at = [number / 10 for number in range(1, 20)] + [60.0]
    found = rates(bound_at)
    assert found["pods_per_s"] == pytest.approx(20 / 60, abs=0.05)
    assert found["pods_per_s_middle_80"] == pytest.approx(10.0)


def test_two_pods_make_no_rate() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        rates([1.0, 2.0])


def test_the_longest_gap_is_found_wherever_it_is() -> None:
    assert longest_gap([5.0, 1.0, 1.5, 12.25, 12.5]) == (7.25, 5.0)
    assert longest_gap([3.0]) == (0.0, 0.0)


def test_times_are_summarized_by_their_ranks() -> None:
    assert summarized([number / 100 for number in range(101)]) == {
        "p50": 0.5,
        "p90": 0.9,
        "p99": 0.99,
        "max": 1.0,
    }


def test_nothing_is_said_of_no_times() -> None:
    assert summarized([]) == {}


def test_cpu_of_neighbours_is_what_the_machine_used_beyond_our_processes() -> None:
    before = Used({"etcd": 1.0, "operator": 2.0}, 10.0)
    after = Used({"etcd": 1.5, "operator": 4.0}, 15.0)
    assert cpu_per_pod(before, after, 100) == {"etcd": 5.0, "operator": 20.0, "others": 25.0}


def test_cpu_of_a_process_is_read_from_proc() -> None:
    pids = {"test": os.getpid()}
    before, begun = used(pids).processes["test"], time.process_time()
    while time.process_time() - begun < 0.1:
        pass
    assert used(pids).processes["test"] - before >= 0.05


def test_memory_of_a_process_is_read_from_proc() -> None:
    assert 10 < peaks_mib({"test": os.getpid()})["test"] < 100_000


def test_a_process_has_ended_before_anybody_waits_for_it() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        pids = {"sleep": process.pid, "test": os.getpid()}
        assert ended(pids) == []
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ended(pids) == ["sleep"]
    assert ended(pids) == ["sleep"]


def test_a_process_that_has_ended_is_an_error() -> None:
    with pytest.raises(OSError, match="No such file"):
        used({"gone": 2**22 + 1})
