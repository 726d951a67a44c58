"""The rules that vendors' tables name, and the registers and records of their device plugins.

A vendor is a table (`vgpu_api.vendors`), and a table is all that most vendors need. Nothing here
knows a vendor: everything is asked with a `Kind` of a table.

    registers     reads which devices a node registers (`register.form`)
    records       writes the annotations that the plugin reads back (`records.more`)
    choices       chooses which of several devices go together (`choice`)
    node_ranking  ranks nodes before their use is compared (`neighbours`)
    neighbours    decides which pods may share a device (`neighbours`)
    parts         finds the part of a device that serves a request (`inParts`)
    devices       is the protocol by which a rule asks about devices

How pods ask is read by the dialect `dialects.vendors`. Pure: values in, values out.
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
