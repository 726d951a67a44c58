"""The devices of a node, by each form of register."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vgpu_api.core import Node
from vgpu_api.errors import BadInput
from vgpu_api.vendors import Kind, kind_of, read_table
from vgpu_operator.vendors import devices_of, given_of, silence_of


def a_kind(name: str) -> Kind:
    kind = kind_of(name)
    assert kind is not None
    return kind


def a_node(
    annotations: dict[str, str] | None = None,
    *,
    labels: dict[str, str] | None = None,
    **capacity: str,
) -> Node:
    amounts = {key.replace("__", "/").replace("_", "."): value for key, value in capacity.items()}
    wire: dict[str, Any] = {
        "metadata": {
            "name": "node-1",
            "annotations": annotations or {},
            "labels": labels or {},
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    return Node.model_validate(wire)


def test_a_list_of_fields_names_each_device() -> None:
    written = "DCU-A,4,16384,100,DCU-Z100,1,true,3,hami-core:DCU-B,2,8192,100,DCU-Z100,-1,false:"
    first, second = devices_of(a_kind("hygon"), a_node({"hami.io/node-dcu-register": written}))
    assert (first.id, first.index, first.slots, first.memory_mib) == ("DCU-A", 3, 4, 16_384)
    assert (first.type, first.numa, first.healthy) == ("DCU-Z100", 1, True)
    assert (second.id, second.index, second.numa, second.healthy) == ("DCU-B", 1, None, False)


def test_devices_follow_from_the_capacity_where_a_plugin_registers_none() -> None:
    node = a_node(cambricon_com__mlu_smlu_vcore="200", cambricon_com__mlu_smlu_vmemory="192")
    first, second = devices_of(a_kind("cambricon"), node)
    assert (first.id, second.id) == ("node-1-cambricon-mlu-0", "node-1-cambricon-mlu-1")
    assert (first.memory_mib, first.cores, first.slots) == (24_576, 100, 100)
    assert silence_of(a_kind("cambricon"), node) == ""


def test_a_node_without_a_register_has_none() -> None:
    for name in ("hygon", "cambricon"):
        assert devices_of(a_kind(name), a_node()) == ()
    assert silence_of(a_kind("cambricon"), a_node()) == (
        "the kubelet offers no cambricon.com/mlu.smlu.vcore: the vendor's device plugin is not "
        "connected"
    )


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("DCU-A", 'Invalid value: "DCU-A": must be a list of devices with a colon behind each'),
        (
            "DCU-A,1:",
            'Invalid value: "DCU-A,1": must be id,count,memory,cores,type,numa,health[,index,mode]',
        ),
        (
            "DCU-A,1,x,100,Z,0,true:",
            'Invalid value: "x": must be a whole number, 0 to 2147483647, as devmem',
        ),
        (
            "DCU-A,1,-5,100,Z,0,true:",
            'Invalid value: "-5": must be a whole number, 0 to 2147483647, as devmem',
        ),
        ("DCU-A,1,5,100,Z,0,yes:", 'Invalid value: "yes": must be true or false, as health'),
        (",1,5,100,Z,0,true:", 'Invalid value: "": must be an id of 1 to 128 characters'),
        (
            "A,1,5,100,Z,0,true:A,1,5,1,Z,0,true:",
            'Invalid value: "A": must be an id of one device: two have it',
        ),
    ],
)
def test_a_register_that_cannot_be_read_is_refused_by_name(written: str, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        devices_of(a_kind("hygon"), a_node({"hami.io/node-dcu-register": written}))
    assert str(caught.value) == f"metadata.annotations[hami.io/node-dcu-register]: {text}"


def test_a_capacity_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(BadInput) as caught:
        devices_of(a_kind("cambricon"), a_node(cambricon_com__mlu_smlu_vcore="1500m"))
    assert str(caught.value) == (
        'status.capacity[cambricon.com/mlu.smlu.vcore]: Invalid value: "1500m": must be a '
        "whole number, 0 to 6400"
    )


@pytest.mark.parametrize(
    ("register", "text"),
    [
        ({"form": "json"}, "annotation must be set with every form but capacity"),
        (
            {"form": "capacity", "annotation": "hami.io/x"},
            "capacity must be set with the form capacity and with no other",
        ),
    ],
)
def test_a_form_without_its_source_is_refused(register: dict[str, str], text: str) -> None:
    kind = {
        "name": "acme",
        "word": "ACME",
        "count": "acme.com/gpu",
        "register": register,
        "records": {"allocated": "hami.io/acme-devices-allocated"},
    }
    with pytest.raises(BadInput, match=text):
        read_table({"title": "Acme", "kinds": [kind]}, source="acme")


DIES = [
    {"id": f"VA-{n}", "index": n, "count": 1, "health": True, "custominfo": info}
    for n, info in enumerate(
        (
            {"AIC": "card-a", "DeviceStrategy": "die"},
            {"AIC": "card-a", "DeviceStrategy": "die"},
            {"AIC": "card-b", "DeviceStrategy": "die"},
        )
    )
]


def test_dies_belong_with_those_of_their_device_only_where_a_node_registers_dies() -> None:
    written = json.dumps(DIES)
    dies = devices_of(a_kind("vastai"), a_node({"hami.io/node-va-register": written}))
    assert [die.group for die in dies] == ["card-a", "card-a", "card-b"]
    written = written.replace('"die"', '"card"')
    devices = devices_of(a_kind("vastai"), a_node({"hami.io/node-va-register": written}))
    assert [device.group for device in devices] == ["", "", ""]


def test_devices_whose_memory_nothing_tells_have_none() -> None:
    first, second = devices_of(a_kind("enflame-gcu"), a_node(enflame_com__gcu="2"))
    assert (first.id, second.id) == ("node-1-GCU-0", "node-1-GCU-1")
    assert (first.memory_mib, first.slots) == (0, 1)


NEURONS = {"aws_amazon_com__neuron": "2", "aws_amazon_com__neuroncore": "4"}


@pytest.mark.parametrize(
    ("instance_type", "group"), [("inf2.24xlarge", "ring"), ("trn1.32xlarge", ""), (None, "")]
)
def test_devices_are_linked_in_a_ring_where_the_nodes_label_says_so(
    instance_type: str | None, group: str
) -> None:
    label = "node.kubernetes.io/instance-type"
    node = a_node(labels={} if instance_type is None else {label: instance_type}, **NEURONS)
    first, second = devices_of(a_kind("aws-neuron"), node)
    assert (first.id, second.id) == ("node-1-AWSNeuron-0", "node-1-AWSNeuron-1")
    assert (first.cores, first.slots, first.memory_mib) == (2, 2, 0)
    assert (first.group, second.group) == (group, group)


@pytest.mark.parametrize(
    ("core_ids", "bits", "numbers"), [((), 3, ()), ((1,), 2, (3,)), ((0, 1), 3, (2, 3))]
)
def test_numbered_cores_are_recorded_as_bits_and_by_their_numbers_on_the_node(
    core_ids: tuple[int, ...], bits: int, numbers: tuple[int, ...]
) -> None:
    kind, node = a_kind("aws-neuron"), a_node(**NEURONS)
    given = given_of(
        kind, node, "node-1-AWSNeuron-1", index=1, memory_mib=0, cores=50, core_ids=core_ids
    )
    assert (given.cores, given.core_numbers) == (bits, numbers)


GPUS = [
    {"id": "GPU-A", "devmem": 196_608, "devcore": 304, "type": "MI300X", "count": 4, "health": True}
]


def test_a_percentage_of_compute_is_recorded_in_whole_units_of_the_device() -> None:
    node = a_node({"hami.io/node-amd-register": json.dumps(GPUS)})
    given = given_of(a_kind("amd"), node, "GPU-A", index=0, memory_mib=1000, cores=33)
    assert (given.cores, given.type, given.memory_mib) == (100, "MI300X", 1000)


@pytest.mark.parametrize("node", [None, a_node()])
def test_nothing_is_recorded_of_a_device_that_is_registered_no_more(node: Node | None) -> None:
    with pytest.raises(BadInput) as caught:
        given_of(a_kind("amd"), node, "GPU-A", index=0, memory_mib=1000, cores=33)
    assert str(caught.value) == (
        'metadata.annotations[hami.io/node-amd-register]: Not found: "GPU-A": '
        "the node registers this device no more"
    )


def test_a_register_may_have_other_keys_and_zones_of_links() -> None:
    """The policies in the devices' registers are not read."""
    entries = [
        {"uuid": f"SGPU-{at}", "model": "MXC500", "totalDevCount": 16, "totalCompute": 100,
         "totalVRam": 65_536, "healthy": True, "qosPolicy": "fixed-share", "linkZone": zone}
        for at, zone in enumerate((2, 0, 2))
    ]  # fmt: skip
    del entries[1]["linkZone"], entries[1]["healthy"]
    node = a_node({"metax-tech.com/node-gpu-devices": json.dumps(entries)})
    first, second, third = devices_of(a_kind("metax-sgpu"), node)
    assert (first.id, first.type, first.index, first.numa) == ("SGPU-0", "MXC500", 0, 0)
    assert (first.slots, first.cores, first.memory_mib) == (16, 100, 65_536)
    assert [each.healthy for each in (first, second, third)] == [True, False, True]
    assert [each.group for each in (first, second, third)] == ["2", "", "2"]
    assert third.index == 2


DRS = "enflame.com/gcu-drs-capacity"
PROFILES = {"6g.40gb": "2", "1g.6gb": "0", "3g.20gb": "1"}


def in_parts(devices: Any, profiles: Any = PROFILES) -> Node:
    return a_node({DRS: json.dumps({"devices": devices, "profiles": profiles})})


def test_devices_in_parts_have_all_parts_and_the_memory_of_the_largest() -> None:
    node = in_parts(
        [{"index": "4", "minor": " 12 ", "capacity": 6}, {"index": "", "capacity": "8"}]
    )
    first, second = devices_of(a_kind("enflame-drs"), node)
    assert (first.id, first.index, first.minor) == ("node-1-enflame-drs-4", 4, "12")
    assert (second.id, second.index, second.minor) == ("node-1-enflame-drs-1", 1, "1")
    assert (first.slots, second.slots) == (6, 8)
    for device in (first, second):
        assert (device.memory_mib, device.cores, device.healthy) == (40_960, 100, True)
        found = [(part.name, part.size, part.memory_mib, part.cores) for part in device.parts]
        assert found == [
            ("1g.6gb", 1, 6144, 17),
            ("3g.20gb", 3, 20_480, 50),
            ("6g.40gb", 6, 40_960, 100),
        ]
        assert [part.id for part in device.parts] == ["0", "1", "2"]


ONE = [{"index": "0", "capacity": 6}]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("{", 'Invalid value: "{": must be a JSON object with devices and profiles'),
        ("[]", 'Invalid value: "[]": must be a JSON object with devices and profiles'),
        ({"profiles": PROFILES}, "must be a JSON object with devices and profiles"),
        ({"devices": ONE}, "Invalid value: null: must be a part with its size and memory"),
        (
            {"devices": ONE, "profiles": {"6g": "0", "full": "1"}},
            "must be a part with its size and memory, such as 3g.24gb, and its id, as profiles",
        ),
        (
            {"devices": ONE, "profiles": {"1g.8gb": 1}},
            "Invalid value: 1: must be a text of at most 128 characters, as the id of 1g.8gb",
        ),
        (
            {"devices": ONE, "profiles": {"1g.9999999gb": "0"}},
            'Invalid value: "1g.9999999gb": must be a part with its size and memory',
        ),
        (
            {"devices": [{"index": "0", "capacity": 5}], "profiles": PROFILES},
            "Invalid value: 5: must be 6 to 1000 as capacity: a part of size 6 is registered",
        ),
        (
            {"devices": [{"capacity": 5}], "profiles": {"1g.8gb": "0", "6g.x": "1"}},
            "Invalid value: 5: must be 6 to 1000 as capacity: a part of size 6 is registered",
        ),
        (
            {"devices": [{"index": "0", "capacity": 1001}], "profiles": PROFILES},
            "Invalid value: 1001: must be 6 to 1000 as capacity",
        ),
        (
            {"devices": [{"index": "0", "capacity": 6.5}], "profiles": PROFILES},
            "Invalid value: 6.5: must be a whole number, 0 to 2147483647, as capacity",
        ),
        (
            {"devices": [{"index": "x", "capacity": 6}], "profiles": PROFILES},
            'Invalid value: "x": must be a whole number, 0 to 2147483647, as index',
        ),
        (
            {"devices": [{"minor": 3, "capacity": 6}], "profiles": PROFILES},
            "Invalid value: 3: must be a text of at most 128 characters, as minor",
        ),
        ({"devices": ["0"], "profiles": PROFILES}, "must be a JSON object for each device"),
        (
            {"devices": [*ONE, *ONE], "profiles": PROFILES},
            'Invalid value: "node-1-enflame-drs-0": must be an id of one device: two have it',
        ),
        (
            {"devices": ONE, "profiles": {f"1g.{gib}gb": "0" for gib in range(1, 66)}},
            "Too many: 65: must have at most 64 profiles",
        ),
    ],
)
def test_a_register_of_parts_that_cannot_be_read_is_refused_by_name(
    written: Any, text: str
) -> None:
    as_text = written if isinstance(written, str) else json.dumps(written)
    with pytest.raises(BadInput) as refused:
        devices_of(a_kind("enflame-drs"), a_node({DRS: as_text}))
    assert str(refused.value).startswith(f"metadata.annotations[{DRS}]: ")
    assert text in str(refused.value)


def test_nothing_is_recorded_of_a_part_that_is_registered_no_more() -> None:
    kind, node = a_kind("enflame-drs"), in_parts(ONE, {"2g.16gb": "0"})
    given = {"index": 0, "memory_mib": 16_384, "cores": 100}
    found = given_of(kind, node, "node-1-enflame-drs-0", part="2g.16gb", **given)
    assert found.part is not None
    assert (found.part.size, found.minor) == (2, "0")
    with pytest.raises(BadInput) as refused:
        given_of(kind, node, "node-1-enflame-drs-0", part="1g.8gb", **given)
    assert str(refused.value) == (
        f'metadata.annotations[{DRS}]: Not found: "1g.8gb": the node registers no such part of '
        "node-1-enflame-drs-0"
    )
