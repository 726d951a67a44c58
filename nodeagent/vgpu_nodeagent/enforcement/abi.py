"""The layout of the two files shared with the library, as in `libvgpu/include/vgpu_abi.h`.

Little-endian, fixed offsets. A test compiles the header and compares every number here with it.
"""

from __future__ import annotations

import struct
from enum import IntEnum

ABI_VERSION = 1
MAX_DEVICES = 64
UUID_BYTES = 64
UNLIMITED = (1 << 64) - 1

PAGE_MAGIC = 0x4547415055504756
PAGE_BYTES = 16384
REGION_MAGIC = 0x4E47455255504756
REGION_SLOTS = 1024
REGION_BYTES = 2113536


class PageState(IntEnum):
    """The state of the page as a whole."""

    DENY = 0
    GRANT = 1
    CLOSED = 2


class CorePolicy(IntEnum):
    """The conditions under which a compute share is enforced."""

    DEFAULT = 0
    FORCE = 1
    DISABLE = 2


# struct vgpu_page up to its devices: magic, abi_version, size, seq, state, epoch, device_count,
# flags, nonce, host_limit_bytes.
PAGE_HEADER = struct.Struct("<QIIIIQII64sQ")
PAGE_SEQ_OFFSET = 16
PAGE_SEQ = struct.Struct("<I")
# What follows `seq`: state, epoch, device_count, flags, nonce, host_limit_bytes.
PAGE_BODY_OFFSET = 20
PAGE_BODY = struct.Struct("<IQII64sQ")
PAGE_DEVICES_OFFSET = 256
# struct vgpu_page_device: uuid, memory_limit_bytes, cores_percent, core_policy, priority, flags,
# physical_bytes, context_bytes, cores_ceiling, a reserved word, alone_until_ns.
PAGE_DEVICE = struct.Struct("<64sQIIIIQQIIQ")
PAGE_DEVICE_BYTES = 192
PAGE_ALONE_OFFSET = 112
PAGE_ALONE = struct.Struct("<Q")

# struct vgpu_region up to its columns: magic, abi_version, size, slot_count, device_count, state,
# slot_high.
REGION_HEADER = struct.Struct("<QIIIIII")
REGION_COLUMNS_OFFSET = 256
# struct vgpu_region_column: key, uuid, denied_count, denied_last_ns, peak_bytes; of its bucket,
# which belongs to the library, only how long launches waited.
REGION_COLUMN = struct.Struct("<Q64sQQQ")
REGION_COLUMN_BYTES = 192
COLUMN_WAITED_OFFSET = 168
COLUMN_WAITED = struct.Struct("<Q")
REGION_SLOTS_OFFSET = 16384
REGION_SLOT_BYTES = 2048
REGION_SLOT_USED_OFFSET = 128
REGION_SLOT_USED = struct.Struct(f"<{MAX_DEVICES}Q")
REGION_READY = 1
# struct vgpu_region_slot: its first word holds the owner in bit fields.
OWNER = struct.Struct("<Q")
OWNER_PID_BITS = 22
OWNER_NS_BITS = 20
OWNER_START_BITS = 21
SLOT_HOST_PID_OFFSET = 36
SLOT_HOST_PID = struct.Struct("<I")
SLOT_HOST_USED_OFFSET = 48
SLOT_SEEN_OFFSET = 80
SEEN_COLUMNS = 12
SLOT_SEEN = struct.Struct(f"<{SEEN_COLUMNS}I")
SLOT_OVERHEAD_OFFSET = 1152
SLOT_OVERHEAD = REGION_SLOT_USED
SLOT_MANAGED_OFFSET = 1664
SLOT_MANAGED = struct.Struct(f"<{MAX_DEVICES}I")
MANAGED_UNIT = 65536
SLOT_IMPORTS_OFFSET = 56
SLOT_COUNTS_END = 2048  # seen, used, peak, overhead, managed and exported end here
