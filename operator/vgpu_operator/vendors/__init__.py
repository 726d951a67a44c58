"""What a vendor's table leaves to code: registers of nodes, records for plugins, and named rules.

Pure: values in, values out. The tables are in `vgpu_api.vendors`; nothing here knows a vendor.
"""

from vgpu_operator.vendors.records import Given, records_of
from vgpu_operator.vendors.registers import (
    RegisteredDevice,
    devices_of,
    given_of,
    silence_of,
    values_of,
)

__all__ = [
    "Given",
    "RegisteredDevice",
    "devices_of",
    "given_of",
    "records_of",
    "silence_of",
    "values_of",
]
