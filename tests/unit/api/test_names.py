"""Names of objects that we create are valid, stable, and as distinct as what they name."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from vgpu_api import names

LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
pod_names = st.from_regex(SUBDOMAIN, fullmatch=True).filter(lambda name: len(name) <= 253)


def is_valid(name: str) -> bool:
    return len(name) <= 253 and SUBDOMAIN.fullmatch(name) is not None


def test_a_devices_object_is_named_by_its_uuid_in_lower_case() -> None:
    name = names.device_object_name("GPU-E3B5F6A0-1234-5678-ABCD-EF1234567890")
    assert name == "gpu-e3b5f6a0-1234-5678-abcd-ef1234567890"


@given(uuid=st.text(max_size=300))
def test_whatever_a_vendor_calls_its_device_becomes_a_valid_name(uuid: str) -> None:
    """Invariant: a DNS subdomain, with room for the suffix of a second node."""
    assert is_valid(names.device_object_name(uuid))
    assert is_valid(names.device_object_name_on_node(uuid, "node-1"))


@given(a=st.text(max_size=30), b=st.text(max_size=30))
def test_two_devices_never_share_a_name(a: str, b: str) -> None:
    """Invariant: ids that differ in more than case have different names."""
    assume(a.lower() != b.lower())
    assert names.device_object_name(a) != names.device_object_name(b)


def test_the_same_device_under_two_nodes_has_two_names() -> None:
    first, second = (names.device_object_name_on_node("GPU-1", node) for node in ("a", "b"))
    assert first != second
    assert first.startswith("gpu-1.")


def test_a_pods_claim_is_named_by_pod_and_uid() -> None:
    uid = "0A1B2C3D-0000-4000-8000-000000000000"
    assert names.pod_claim_name("train", uid) == "train-0a1b2c3d"


@given(pod=pod_names, uid=st.uuids())
def test_a_pods_claim_has_a_valid_name(pod: str, uid: object) -> None:
    """Invariant: any pod name and UID give a DNS subdomain."""
    assert is_valid(names.pod_claim_name(pod, str(uid)))


@given(pod=pod_names, uid=st.text(max_size=20))
def test_a_uid_that_is_no_uuid_still_names_a_claim(pod: str, uid: str) -> None:
    """Invariant: total over UIDs, and stable."""
    name = names.pod_claim_name(pod, uid)
    assert is_valid(name)
    assert name == names.pod_claim_name(pod, uid)
