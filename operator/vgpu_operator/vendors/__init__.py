"""The rules that vendors' tables refer to, and the annotations of their device plugins.

A vendor is a table (`vgpu_api.vendors`), which is enough for most vendors. The code here knows no
vendor: every function takes a `Kind` from a table.

    registers     reads the devices that a node registers (`register.form`)
    records       writes the annotations that the device plugin reads back (`records.more`)
    choices       chooses which of several devices go together (`choice`)
    node_ranking  ranks nodes before their usage is compared (`neighbours`)
    neighbours    decides which pods may share a device (`neighbours`)
    parts         finds the part of a device that serves a request (`inParts`)
    devices       the protocol through which a rule reads devices

The dialect `dialects.vendors` reads pods' requests. Pure: no I/O.
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
