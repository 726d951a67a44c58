from __future__ import annotations

import pytest

from vgpu_local.apiserver.quantities import MalformedQuantityError, canonical


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("4000", "4k"),
        ("16384Mi", "16Gi"),
        ("1536Mi", "1536Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0Gi", "0"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("12000e0", "12e3"),
        ("-4000", "-4k"),
        (".5", "500m"),
        ("1025", "1025"),
        ("0.1n", "1n"),
    ],
)
def test_a_quantity_is_kept_in_its_canonical_form(sent: str, kept: str):
    assert canonical(sent) == kept


@pytest.mark.parametrize("text", ["", "8GB", "abc", "1.2.3", "Gi", "8 Gi", "1e", "--1", "0x10"])
def test_what_is_no_quantity_is_refused(text: str):
    with pytest.raises(MalformedQuantityError):
        canonical(text)
