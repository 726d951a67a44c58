"""The scores of nodes and devices, with numbers."""

from __future__ import annotations

import pytest

from builders import a_request, an_ask, device_facts, some_columns
from vgpu_api.effective import Use
from vgpu_operator.placement.usage_scores import device_score, node_score

DEVICES = [device_facts("a", memory_mib=10_000), device_facts("b", index=1, memory_mib=30_000)]


def test_a_node_is_scored_by_what_its_devices_carry_before_the_request():
    columns = some_columns(*DEVICES, used={"a": Use(10_000, 50, 4)})
    assert node_score(columns, 0) == pytest.approx(10 * (4 / 20 + 50 / 200 + 10_000 / 40_000))


def test_a_device_is_scored_with_the_request_and_by_the_weights():
    columns = some_columns(*DEVICES, used={"a": Use(1000, 20, 2)})
    request = an_ask(a_request(memory_percent=20, cores=30)).requests[0]
    expected = 10 * (1 * (1 + 2) / 10 + 2 * (30 + 20) / 100 + 3 * (2000 + 1000) / 10_000)
    assert device_score(columns, 0, request, (1, 2, 3)) == pytest.approx(expected)


def test_a_total_of_zero_contributes_nothing():
    columns = some_columns(device_facts(cores=0, slots=0, memory_mib=1024))
    assert node_score(columns, 0) == 0
    request = an_ask(a_request(memory="512Mi", cores=30)).requests[0]
    assert device_score(columns, 0, request, (1, 1, 1)) == 10 * 512 / 1024
