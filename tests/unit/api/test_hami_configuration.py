"""HAMi's configuration documents read unchanged: each key acts, or a notice names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from vgpu_api.config import (
    ClusterConfig,
    NodeConfig,
    NvidiaConfig,
    load_cluster_config,
    read_cluster_config,
)
from vgpu_api.config.hami import VENDOR_SECTIONS, WITHOUT_EFFECT
from vgpu_api.errors import BadInput

EXAMPLES = Path(__file__).parents[3] / "examples"

CHART = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  preConfiguredDeviceMemory: 0
  memoryFactor: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  enableNumaTopology: false
  gpuCorePolicy: default
  libCudaLogLevel: 1
  runtimeClassName: ""
  migProfileAllowlist:
  - models: [ "A30" ]
    profiles: [ "1g.6gb", "2g.12gb", "4g.24gb" ]
  - models: [ "A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB"]
    profiles: [ "1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb" ]
"""
"""The section as HAMi v2.10's chart renders it with its own values (two of nine rows of MIG)."""


def read(document: Any) -> tuple[ClusterConfig, list[str]]:
    notices: list[str] = []
    config = read_cluster_config(document, lambda notice: notices.append(str(notice)))
    return config, notices


def of_example(file: str) -> tuple[ClusterConfig, list[str]]:
    return read(yaml.safe_load((EXAMPLES / file).read_text()))


def test_the_charts_own_section_reads_unchanged_and_asks_for_what_holds_but_for_one_key() -> None:
    config, notices = read(yaml.safe_load(CHART))
    assert [notice.split(" has no effect")[0] for notice in notices] == [
        "nvidia.overwriteEnv: false"  # devices are hidden from other containers all the same
    ]
    assert config.nvidia.model_copy(update={"mig_profile_allowlist": ()}) == NvidiaConfig()
    assert config.nvidia.mig_profile_allowlist[1].profiles[1] == "2g.10gb"


def test_the_guides_section_reads_unchanged() -> None:
    assert of_example("hami-configuration/6.1.1-nvidia.yaml") == (ClusterConfig(), [])


def test_the_flat_keys_of_the_guide_act() -> None:
    config, notices = of_example("hami-guide/5.1-device-config.yaml")
    assert notices == []
    assert config == ClusterConfig(nvidia=NvidiaConfig(default_memory=1000))


@pytest.mark.parametrize(
    ("key", "value", "field", "meant"),
    [
        ("nvidia.deviceMemoryScaling", "1.8", "device_memory_scaling", 1.8),
        ("nvidia.deviceSplitCount", "5", "device_split_count", 5),
        ("nvidia.defaultCores", "30", "default_cores", 30),
        ("nvidia.defaultGPUNum", "2", "default_gpu_num", 2),
        ("nvidia.defaultGPUNum", "0", "default_gpu_num", 1),
        ("nvidia.memoryFactor", 0, "memory_factor", 1),
        ("nvidia.disablecorelimit", "true", "core_policy", "Disable"),
        ("nvidia.disablecorelimit", "false", "core_policy", "Default"),
        ("nvidia.disableCoreLimit", True, "core_policy", "Disable"),
        ("nvidia.gpuCorePolicy", "force", "core_policy", "Force"),
        ("nvidia.gpuCorePolicy", "", "core_policy", "Default"),
        ("nvidia.runtimeClassName", "nvidia", "runtime_class_name", "nvidia"),
    ],
)
def test_each_flat_key_is_read_in_the_type_that_it_has(
    key: str, value: Any, field: str, meant: Any
) -> None:
    config, notices = read({key: value})
    assert (getattr(config.nvidia, field), notices) == (meant, [])
    nested, _ = read({"nvidia": {key.removeprefix("nvidia."): value}})
    assert nested == config


@pytest.mark.parametrize("section", VENDOR_SECTIONS)
def test_another_vendors_section_is_accepted_and_named(section: str) -> None:
    config, notices = read({section: {"resourceCountName": "hygon.com/dcunum"}})
    assert config == ClusterConfig()
    assert notices == [
        f'{section}: "…" has no effect: of vendors only NVIDIA\'s section is read; '
        "docs/vendors.md has the words of the others, which are not renamed"
    ]


def test_what_another_vendors_section_would_change_is_named() -> None:
    """Pods with a renamed resource would wait for ever, and amounts would change their meaning."""
    chips = [{"commonWord": "A", "resourceName": "x.com/a", "memoryFactor": 1024}]
    hygons = {"resourceCountName": "x.com/dcu", "memoryFactor": 1, "defaultMem": 0}
    given = {
        "hygon": {**hygons, "defaultMemory": 2000},
        "vnpus": {"configs": chips},
        "mthreads.resourceCountName": "x.com/gpu",
    }
    _, notices = read(given)
    lost = [notice.split(" has no effect")[0] for notice in notices if "…" not in notice]
    assert lost == [
        'hygon.resourceCountName: "x.com/dcu"',
        "hygon.defaultMemory: 2000",
        'vnpus.configs[0].resourceName: "x.com/a"',
        "vnpus.configs[0].memoryFactor: 1024",
        'mthreads.resourceCountName: "x.com/gpu"',
        'mthreads.resourceCountName: "x.com/gpu"',
    ]


def test_a_whole_document_of_several_vendors_keeps_its_nvidia_section() -> None:
    config, notices = of_example("hami-configuration/6.1.6-mixed.yaml")
    assert config == ClusterConfig()
    assert [notice.split(":")[0] for notice in notices] == [
        "data[device-config.yaml].ascend",
        "data[device-config.yaml].cambricon",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("overwriteEnv", False),
        ("enableNumaTopology", True),
        ("libCudaLogLevel", 4),
        ("knownMigGeometries", [{"models": ["A30"]}]),
    ],
)
def test_a_key_that_does_nothing_is_named_with_what_to_use(key: str, value: Any) -> None:
    config, (notice,) = read({"nvidia": {key: value}})
    assert config == ClusterConfig()
    shown = json.dumps(value)
    assert notice == f"nvidia.{key}: {shown} has no effect: {WITHOUT_EFFECT[key][1]}"


def test_node_configuration_holds_by_name_and_the_last_entry_wins() -> None:
    config, notices = of_example("hami-configuration/6.2-nodes.yaml")
    second = config.on_node("node2", {})
    assert (second.nvidia.device_split_count, second.nvidia.device_memory_scaling) == (5, 1.5)
    assert second.nvidia.device_core_scaling == 1.2
    assert second.leaves_out("GPU-12345678-1234-1234-1234-123456789012", 7)
    assert second.leaves_out("GPU-other", 1)
    assert not second.leaves_out("GPU-other", 2)
    assert config.on_node("node1", {}).nvidia == config.on_node("other", {}).nvidia
    named = [notice.split(":")[0].removeprefix("data[config.json].") for notice in notices]
    assert named == [
        "nodeconfig[1].libcudaloglevel",
        "nodeconfig[2].operatingmode",
        "nodeconfig[2].migstrategy",
    ]
    both = [{"name": "a", "devicesplitcount": 2}, {"name": "a", "devicecorescaling": 2}]
    twice = read({"nodeconfig": [*both, {"name": "a", "devicesplitcount": 3}]})[0].on_node("a", {})
    assert (twice.nvidia.device_split_count, twice.nvidia.device_core_scaling) == (3, 2)


def test_a_nodes_own_strategy_holds_for_its_devices_unless_hami_divides_them() -> None:
    static = {"name": "a", "migstrategy": "mixed"}
    divided = {"name": "b", "OperatingMode": "mig", "migstrategy": "mixed"}
    config, notices = read({"nodeconfig": [static, divided]})
    found = [config.on_node(name, {}).nvidia.mig_strategy for name in ("a", "b", "c")]
    assert found == ["mixed", "none", "none"]
    assert [notice.split(":")[0] for notice in notices] == [
        "nodeconfig[1].OperatingMode",
        "nodeconfig[1].migstrategy",
    ]


def test_instances_can_be_named_in_resources_where_the_strategy_is_mixed() -> None:
    assert read({"nvidia": {"migStrategy": "single"}})[0].nvidia.mig_resources == {}
    profiles = ["1g.10gb", "1g.10gb+me"]
    config, _ = read({"nvidia": {"migStrategy": "mixed", "migProfiles": profiles}})
    assert config.nvidia.mig_resources == {
        "nvidia.com/mig-1g.10gb": "1g.10gb",
        "nvidia.com/mig-1g.10gb.me": "1g.10gb+me",
    }
    managed = config.managed_resources()
    assert all(managed[name] is True for name in config.nvidia.mig_resources)
    assert not any("mig-" in name for name in ClusterConfig().managed_resources())


@pytest.mark.parametrize(("key", "value"), [("migStrategy", "static"), ("migProfiles", ["small"])])
def test_a_strategy_or_profile_that_there_is_none_of_is_refused(key: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"nvidia.{key}"):
        read({"nvidia": {key: value}})


def test_node_configuration_holds_by_labels() -> None:
    entry = {"selector": {"pool": "a", "gpu": "t4"}, "devicesplitcount": 3}
    config, _ = read({"nodeconfig": [entry]})
    assert config.on_node("x", {"pool": "a", "gpu": "t4", "z": ""}).nvidia.device_split_count == 3
    assert config.on_node("x", {"pool": "a"}).nvidia.device_split_count == 10


@pytest.mark.parametrize("entry", [{}, {"name": "a", "selector": {"b": "c"}}])
def test_an_entry_for_no_node_or_for_two_kinds_of_them_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"nodeconfig.0.*give the name of a node or a selector"):
        read({"nodeconfig": [entry]})


def test_the_charts_example_of_a_node_reads_unchanged() -> None:
    entry = {
        "name": "your-node-name",
        "operatingmode": "hami-core",
        "devicememoryscaling": 1,
        "devicesplitcount": 10,
        "preconfigureddevicememory": 0,
        "enablenumatopology": False,
        "migstrategy": "none",
        "filterdevices": {"uuid": [], "index": []},
        "enablegetpreferredallocation": False,
    }
    config, notices = read({"nodeconfig": [entry]})
    assert notices == []
    assert config.on_node("your-node-name", {}).nvidia == NvidiaConfig()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("binpack", "Binpack"),
        ("Spread", "Spread"),
        ("topology-aware", "Topology"),
        ("topology", "Topology"),
        ("numa-first", "NUMAFirst"),
        ("best-fit", "BestFit"),
    ],
)
def test_policies_are_read_in_the_charts_spelling(written: str, meant: str) -> None:
    assert read({"scheduling": {"devicePolicy": written}})[0].scheduling.device_policy == meant
    chart = {"scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": written}}}
    assert read(chart)[0].scheduling.device_policy == meant


def test_the_charts_values_of_its_scheduler_act_or_are_named() -> None:
    config, notices = read(
        {
            "scheduler": {
                "defaultSchedulerPolicy": {"nodeSchedulerPolicy": "spread"},
                "forceOverwriteDefaultScheduler": False,
                "overwriteEnv": "false",
                "nodeLockExpire": "5m",
            }
        }
    )
    assert (config.scheduling.node_policy, config.scheduling.scheduler_name) == ("Spread", "")
    assert [notice.split(":")[0] for notice in notices] == [
        "scheduler.overwriteEnv",
        "scheduler.nodeLockExpire",
    ]


def test_several_config_maps_make_one_configuration() -> None:
    maps = [
        yaml.safe_load((EXAMPLES / file).read_text())
        for file in ("hami-configuration/6.1.6-mixed.yaml", "hami-configuration/6.2-nodes.yaml")
    ]
    for document in (maps, {"kind": "List", "items": maps}):
        config, _ = read(document)
        assert [entry.name for entry in config.nodes] == ["node1", "node2", "node3"]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"nvidia": {"deviceSplitCont": 5}},
            "nvidia.deviceSplitCont: Forbidden: unknown key; did you mean deviceSplitCount?",
        ),
        (
            {"nvidea": {}},
            "nvidea: Forbidden: unknown key; did you mean nvidia?",
        ),
        ({"kind": "Secret"}, 'kind: Unsupported value: "Secret": supported values: "ConfigMap"'),
        ({"nvidia": 3}, "nvidia: Invalid value: 3: must be an object"),
        ({"nodeconfig": {}}, "nodeconfig: Invalid value: {}: must be a list of nodes"),
        ({"nodeconfig": [1]}, "nodeconfig[0]: Invalid value: 1: must be an object"),
        (
            {"kind": "ConfigMap", "data": {"device-config.yaml": "nvidia: ["}},
            'data[device-config.yaml]: Invalid value: "while parsing a flow node": must be a '
            "YAML document",
        ),
        (
            {"kind": "ConfigMap", "data": {"config.json": 3}},
            "data[config.json]: Invalid value: 3: must be text",
        ),
        ({"nvidia.defaultCores": "200"}, 'nvidia.defaultCores: Invalid value: "200": '),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_path(document: Any, said: str) -> None:
    with pytest.raises(BadInput) as refusal:
        read(document)
    assert str(refusal.value).startswith(said)


def test_nothing_is_reported_of_a_document_that_is_refused() -> None:
    notices: list[Any] = []
    with pytest.raises(BadInput):
        read_cluster_config(
            {"nvidia": {"migStrategy": "mixed", "defaultCores": 101}}, notices.append
        )
    assert notices == []


def test_mig_profiles_are_restricted_by_the_first_row_for_the_model() -> None:
    nvidia = read(yaml.safe_load(CHART))[0].nvidia
    driver = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    usable = nvidia.usable_profiles("NVIDIA A100-PCIE-40GB", driver)
    assert usable == {"1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"}
    assert nvidia.usable_profiles("NVIDIA H100 PCIe", driver) == set(driver)
    assert nvidia.usable_profiles("NVIDIA A30", ("1g.6gb", "2g.12gb", "4g.25gb")) == {
        "1g.6gb",
        "2g.12gb",
        "4g.25gb",
    }


KEYS = st.sampled_from(
    [
        *("nvidia", "nodeconfig", "nodes", "scheduling", "scheduler", "views", "aliyun", "kind"),
        *("data", "items", "device-config.yaml", "config.json", "name", "selector", "metax"),
        *("filterdevices", "filterDevices", "uuid", "index", "devicesplitcount", "migStrategy"),
        *("deviceSplitCount", "defaultMem", "gpuCorePolicy", "disablecorelimit", "models"),
        *("migProfileAllowlist", "profiles", "defaultSchedulerPolicy", "nvidia.defaultMem"),
        *(f"nvidia.{key}" for key in WITHOUT_EFFECT),
        *WITHOUT_EFFECT,
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["ConfigMap", "List", "true", "0", "1", "force", "binpack", "nvidia: {", "[]"]
    )
    | st.dates()
)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS | st.text(max_size=6) | st.integers(), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(DOCUMENTS)
@example({"kind": "ConfigMap", "data": {"a.yaml": "&a [*a]"}})
@example({"nvidia": {"deviceSplitCount": float("nan")}})
@example({"migProfileAllowlist": [{"models": [], "profiles": []}]})
@example({"kind": ["ConfigMap"]})
def test_any_document_is_a_whole_configuration_or_a_refusal_that_names_its_path(
    document: Any,
) -> None:
    """Total: never another error. The result is complete, and reads back as the same."""
    notices: list[Any] = []
    try:
        config = read_cluster_config(document, notices.append)
    except BadInput as error:
        config, refusal = None, error
    else:
        refusal = None
    assert (refusal is None) == (config is not None)
    if config is None:
        assert refusal is not None
        assert refusal.field
        assert notices == []
    else:
        again = json.loads(json.dumps(config.model_dump(mode="json", by_alias=True)))
        assert read_cluster_config(again) == config
        assert all(str(notice) for notice in notices)


@given(text=st.text(max_size=60) | DOCUMENTS.map(lambda found: yaml.safe_dump(found)))
def test_any_file_is_a_whole_configuration_or_a_refusal(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Total for texts too: a tag, an anchor or half a character is refused, and nothing breaks."""
    file = tmp_path_factory.mktemp("config") / "config.yaml"
    file.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    try:
        config = load_cluster_config(file)
    except BadInput as error:
        config, refusal = None, error
    else:
        refusal = None
    assert isinstance(config, ClusterConfig) or (refusal is not None and refusal.field)


def test_our_own_spelling_of_node_configuration_is_the_same() -> None:
    ours, _ = read({"nodes": [{"name": "a", "deviceSplitCount": 3}]})
    assert ours.nodes == (NodeConfig(name="a", device_split_count=3),)
    assert read({"nodeconfig": [{"name": "a", "devicesplitcount": 3}]})[0] == ours


def test_the_memory_of_gpus_that_report_none_is_read_for_all_nodes_and_for_one() -> None:
    """HAMi's key, in the chart's spelling and in the spelling of `nodeconfig`."""
    config, notices = read(
        {
            "nvidia": {"preConfiguredDeviceMemory": 4096},
            "nodeconfig": [{"name": "spark", "preconfigureddevicememory": 122880}],
        }
    )
    assert notices == []
    assert config.on_node("other", {}).nvidia.pre_configured_device_memory == 4096
    assert config.on_node("spark", {}).nvidia.pre_configured_device_memory == 122880


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"nodeconfig": [{"name": "a", "typo": 1}]}, "nodeconfig[0].typo"),
        (
            {"nodeconfig": [{"name": "a", "devicesplitcount": "x"}]},
            "nodeconfig[0].devicesplitcount",
        ),
        (
            {"nodeconfig": [{"name": "a", "filterdevices": {"uuids": ["x"]}}]},
            "nodeconfig[0].filterdevices.uuids",
        ),
        ({"nodeconfig": [{"devicesplitcount": 3}]}, "nodeconfig[0]"),
        ({"nodes": [{"name": "a"}], "nodeconfig": [{"typo": 1}]}, "nodeconfig[0].typo"),
        ({"nodes": [{"name": "a", "typo": 1}]}, "nodes[0].typo"),
        ({"nvidia.disablecorelimit": "maybe"}, "nvidia.disablecorelimit"),
        (
            {"scheduler": {"defaultSchedulerPolicy": {"nodeSchedulerPolicy": "tight"}}},
            "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy",
        ),
        (
            {"kind": "ConfigMap", "data": {"device-config.yaml": "nvidia: {deviceSplitCount: x}"}},
            "data[device-config.yaml].nvidia.deviceSplitCount",
        ),
        (
            {
                "kind": "ConfigMap",
                "data": {"config.json": '{"nodeconfig": [{"name": "a", "b": 1}]}'},
            },
            "data[config.json].nodeconfig[0].b",
        ),
    ],
)
def test_a_refusal_has_the_path_that_the_field_has_in_the_given_document(
    given: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        read(given)
    assert refusal.value.field == field
