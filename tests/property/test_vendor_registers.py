"""Any annotations of nodes and pods for other vendors' devices are read or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from builders import a_container, a_node, a_pod
from vgpu_api.config import ClusterConfig, VendorsConfig
from vgpu_api.core import Node
from vgpu_api.errors import BadInput
from vgpu_api.vendors import Kind, kinds
from vgpu_operator.admission.rules.denial import Denied
from vgpu_operator.admission.rules.pod_mutation import mutate_pod
from vgpu_operator.dialects import read
from vgpu_operator.vendors import devices_of
from vgpu_operator.vendors.registers import MAX_DEVICES, field_of

CONFIG = ClusterConfig(vendors=VendorsConfig(leave_alone=()))
some_kind = st.sampled_from(kinds())
numbers = st.sampled_from(("0", "1", "-1", "100", "16384", "99999999999", "1.5", "", "x", "1e3"))
words = st.one_of(st.text(max_size=20), numbers, st.sampled_from(("true", "false", "hami-core")))
rows = st.lists(words, min_size=0, max_size=10).map(",".join)
fields = st.lists(rows, max_size=5).map(":".join)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
device = st.fixed_dictionaries(
    {},
    optional={
        key: st.one_of(st.integers(-2, 1 << 33), st.booleans(), st.text(max_size=8), st.none())
        for key in ("id", "index", "count", "devmem", "devcore", "type", "numa", "health")
    }
    | {
        "custominfo": st.dictionaries(
            st.sampled_from(("NetworkID", "AIC", "DeviceStrategy")),
            st.one_of(st.integers(0, 3), st.sampled_from(("die", "card", "a")), st.none(), plain),
        )
    },
)
documents = st.one_of(plain, st.lists(st.one_of(device, plain), max_size=5)).map(json.dumps)
registers = st.one_of(st.text(max_size=200), fields, documents)
quantities = st.one_of(
    st.sampled_from(("0", "1", "2", "64", "65", "-1", "1500m", "8Gi", "1k", "x", "", "1e40", "2E")),
    st.integers(-5, 1 << 40),
    st.text(max_size=8),
)


T = TypeVar("T")


def outcome_of(work: Callable[[], T]) -> T | BadInput:
    """Return the result or the refusal; any other exception is a crash."""
    try:
        return work()
    except BadInput as error:
        return error


def registering(kind: Kind, written: str) -> Node:
    node = a_node()
    said = {kind.register_.annotation: written}
    metadata = node.metadata.model_copy(update={"annotations": said})
    return node.model_copy(update={"metadata": metadata})


@given(kind=some_kind, written=registers)
def test_a_register_is_read_whole_or_refused_by_name(kind: Kind, written: str) -> None:
    """The result is devices with unique ids and no negative amounts, or `BadInput`."""
    found = outcome_of(lambda: devices_of(kind, registering(kind, written)))
    if isinstance(found, BadInput):
        assert found.field == field_of(kind)
        return
    assert len({each.id for each in found}) == len(found) <= MAX_DEVICES
    for each in found:
        assert each.id
        assert min(each.index, each.memory_mib, each.cores, each.slots) >= 0


@given(
    kind=some_kind,
    amounts=st.lists(st.one_of(st.none(), quantities), min_size=3, max_size=3),
    said=st.lists(st.text(max_size=40), min_size=4, max_size=4),
)
def test_a_pod_in_a_vendors_words_is_read_or_refused_by_name(
    kind: Kind, amounts: list[str | int | None], said: list[str]
) -> None:
    """The result is a demand for that vendor's devices, nothing, a denial or a patch."""
    limits = {
        name: amount
        for name, amount in zip(kind.resources, amounts, strict=False)
        if amount is not None
    }
    keys = [key for key in kind.selection.model_dump().values() if key is not None]
    pod = a_pod(
        containers=[a_container(limits=limits)],
        annotations=dict(zip(keys, said, strict=False)),
    )
    demand = outcome_of(lambda: read(pod, CONFIG))
    if isinstance(demand, BadInput):
        assert demand.field.startswith(("spec.containers[0]", "metadata.annotations"))
    elif demand is not None:
        assert demand.spec is not None
        (request,) = demand.spec.requests
        assert request.vendor == kind.name
        assert demand.slotless == ()
    try:
        patch = mutate_pod(pod.to_wire(), CONFIG, None)
    except Denied:
        return
    assert not any("nvidia.com" in operation["path"] for operation in patch)
