"""Names in ResourceClaims are valid for Kubernetes, stable, and as distinct as what they name."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from vgpu_api import dra

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ALLOCATION = "0b54b1de-6a36-4f10-9c3f-0f4b2f3f8a11"
OTHER = "0b54b1de-6a36-4f10-9c3f-0f4b2f3f8a12"


def test_a_device_is_named_by_its_uuid_in_lower_case() -> None:
    name = dra.device_name("GPU-E3B5F6A0-1234-5678-ABCD-EF1234567890")
    assert name == "gpu-e3b5f6a0-1234-5678-abcd-ef1234567890"


@given(uuid=st.text(max_size=200))
def test_every_uuid_gives_a_dns_label(uuid: str) -> None:
    """Invariant: the API server accepts the name of any device."""
    name = dra.device_name(uuid)
    assert len(name) <= 63
    assert LABEL.fullmatch(name)


@given(a=st.text(max_size=90), b=st.text(max_size=90))
def test_two_devices_have_two_names(a: str, b: str) -> None:
    """Invariant: ids that differ in more than case have different names."""
    assume(a.lower() != b.lower())
    assert dra.device_name(a) != dra.device_name(b)


def test_the_share_of_a_request_is_a_uuid_that_both_sides_can_compute() -> None:
    found = dra.share_id(ALLOCATION, "train")
    assert UUID.fullmatch(found)
    # RFC 9562 defines version 5 like this; computed by hand with sha1sum.
    assert found == "2305822b-b528-51ce-885b-cbf1b9068ec5"


def test_another_container_or_another_allocation_is_another_share() -> None:
    shares = {
        dra.share_id(allocation, container)
        for allocation in (ALLOCATION, OTHER)
        for container in ("train", "serve")
    }
    assert len(shares) == 4
