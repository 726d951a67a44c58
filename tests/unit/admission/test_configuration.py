"""A ConfigMap with our configuration is refused if a process could not use it."""

from __future__ import annotations

import pytest

from vgpu_operator.admission.rules import Denied, validate_configuration


def config_map(**data: str) -> dict[str, object]:
    return {
        "kind": "ConfigMap",
        "data": {key.replace("_", "."): text for key, text in data.items()},
    }


def test_a_valid_document_passes_without_a_word() -> None:
    text = "scheduling:\n  starvationAfterSeconds: 30\n"
    assert validate_configuration(config_map(config_yaml=text)) == []


def test_a_config_map_without_data_is_the_defaults() -> None:
    assert validate_configuration({"kind": "ConfigMap"}) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("nvidia:\n  defaultMem: lots\n", "nvidia.defaultMem"),
        ("nvidia:\n  defaultMemm: 1\n", "nvidia.defaultMemm"),
        ("nvidia: [\n", "config.yaml"),
    ],
)
def test_what_no_process_could_use_is_refused_by_its_path(text: str, path: str) -> None:
    with pytest.raises(Denied) as refused:
        validate_configuration(config_map(config_yaml=text))
    assert path in refused.value.message


def test_a_key_of_hami_that_does_nothing_is_a_warning() -> None:
    (warning,) = validate_configuration(config_map(config_yaml="nvidia:\n  libCudaLogLevel: 4\n"))
    assert "libCudaLogLevel: 4 has no effect: " in warning


def test_names_that_the_shipped_manifests_lack_are_a_warning() -> None:
    text = "nvidia:\n  migStrategy: mixed\n  migProfiles: [1g.10gb]\n  resourceCountName: a.b/gpu\n"
    (warning,) = validate_configuration(config_map(config_yaml=text))
    assert warning.startswith("a.b/gpu, nvidia.com/mig-1g.10gb: not in the manifests as shipped: ")
