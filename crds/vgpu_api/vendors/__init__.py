"""The tables of supported vendors other than NVIDIA, and the model of these tables."""

from vgpu_api.vendors.model import (
    Capacity,
    Cores,
    Kind,
    Mark,
    Memory,
    Neighbours,
    Record,
    Records,
    Register,
    Selection,
    Vendor,
)
from vgpu_api.vendors.not_served import NOT_SERVED
from vgpu_api.vendors.tables import kind_of, kinds, read_table, shipped

__all__ = [
    "NOT_SERVED",
    "Capacity",
    "Cores",
    "Kind",
    "Mark",
    "Memory",
    "Neighbours",
    "Record",
    "Records",
    "Register",
    "Selection",
    "Vendor",
    "kind_of",
    "kinds",
    "read_table",
    "shipped",
]
