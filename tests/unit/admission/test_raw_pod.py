"""The pod of a review is read once, however many rules check it."""

from __future__ import annotations

import copy

from vgpu_operator.admission.rules import RawPod
from vgpu_operator.admission.rules.raw_pod import read_pod

POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}


def test_it_is_read_once() -> None:
    raw = RawPod(POD)
    assert read_pod(raw) is read_pod(raw)


def test_a_deep_copy_is_json_that_is_read_for_itself() -> None:
    raw = RawPod(POD)
    read_pod(raw)
    changed = copy.deepcopy(raw)
    changed["metadata"]["name"] = "q"
    assert type(changed) is dict
    assert (read_pod(raw).metadata.name, read_pod(changed).metadata.name) == ("p", "q")
