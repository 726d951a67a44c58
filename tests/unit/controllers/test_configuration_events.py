"""The event about a ConfigMap with our configuration."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_operator.controllers.configuration import event_about


def a_config_map(text: str, *, name: str = "vgpu-config-7d9c5b") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "vgpu-system", "uid": "1"},
        "data": {"config.yaml": text},
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("nvidia: {defaultCores: 101}", "nvidia.defaultCores: Invalid value: 101"),
        ("nvidia: {defaultCore: 1}", "nvidia.defaultCore: Forbidden: unknown key"),
        ("nvidia: [", "Invalid value"),
    ],
)
def test_a_wrong_configuration_is_reported_with_its_field(text: str, fault: str) -> None:
    event = event_about(a_config_map(text))
    assert event is not None
    assert event.reason == "ConfigMapInvalid"
    assert event.note.startswith("running programs keep the former configuration: ")
    assert fault in event.note


def test_a_key_without_effect_is_reported_as_a_warning() -> None:
    event = event_about(a_config_map("nvidia: {libCudaLogLevel: 4}\n"))
    assert event is not None
    assert event.reason == "ConfigMapWarning"
    assert "libCudaLogLevel: 4 has no effect: " in event.note


@pytest.mark.parametrize("text", ["", "nvidia: {defaultCores: 20}\n"])
def test_a_configuration_in_order_has_no_event(text: str) -> None:
    assert event_about(a_config_map(text)) is None


def test_a_config_map_of_another_name_is_none_of_ours() -> None:
    assert event_about(a_config_map("nvidia: [", name="kube-root-ca.crt")) is None


def test_a_config_map_without_data_is_in_order() -> None:
    empty = a_config_map("")
    del empty["data"]
    assert event_about(empty) is None
