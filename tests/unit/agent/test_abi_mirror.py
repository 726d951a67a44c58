"""The Python mirror of the shared files' layout agrees with the compiled header."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vgpu_nodeagent.enforcement import abi
from vgpu_nodeagent.enforcement.page import DeviceLimit, read_page
from vgpu_nodeagent.enforcement.region import DeviceUse, read_region

INCLUDE = Path(__file__).parents[3] / "libvgpu" / "include"

# The header's values as C expressions, and those of the mirror.
FACTS = {
    "VGPU_ABI_VERSION": abi.ABI_VERSION,
    "VGPU_MAX_DEVICES": abi.MAX_DEVICES,
    "VGPU_UUID_BYTES": abi.UUID_BYTES,
    "VGPU_UNLIMITED": abi.UNLIMITED,
    "VGPU_PAGE_MAGIC": abi.PAGE_MAGIC,
    "VGPU_PAGE_BYTES": abi.PAGE_BYTES,
    "VGPU_PAGE_DENY": abi.PageState.DENY,
    "VGPU_PAGE_GRANT": abi.PageState.GRANT,
    "VGPU_PAGE_CLOSED": abi.PageState.CLOSED,
    "VGPU_CORES_DEFAULT": abi.CorePolicy.DEFAULT,
    "VGPU_CORES_FORCE": abi.CorePolicy.FORCE,
    "VGPU_CORES_DISABLE": abi.CorePolicy.DISABLE,
    "VGPU_REGION_MAGIC": abi.REGION_MAGIC,
    "VGPU_REGION_BYTES": abi.REGION_BYTES,
    "VGPU_REGION_SLOTS": abi.REGION_SLOTS,
    "VGPU_REGION_READY": abi.REGION_READY,
    "sizeof(struct vgpu_page)": abi.PAGE_BYTES,
    "sizeof(struct vgpu_page_device)": abi.PAGE_DEVICE_BYTES,
    "sizeof(struct vgpu_region)": abi.REGION_BYTES,
    "sizeof(struct vgpu_region_column)": abi.REGION_COLUMN_BYTES,
    "sizeof(struct vgpu_region_slot)": abi.REGION_SLOT_BYTES,
    "offsetof(struct vgpu_page, seq)": abi.PAGE_SEQ_OFFSET,
    "offsetof(struct vgpu_page, state)": abi.PAGE_BODY_OFFSET,
    "offsetof(struct vgpu_page, reserved_header)": abi.PAGE_HEADER.size,
    "offsetof(struct vgpu_page, reserved_header) - 20": abi.PAGE_BODY.size,
    "offsetof(struct vgpu_page, devices)": abi.PAGE_DEVICES_OFFSET,
    "offsetof(struct vgpu_page_device, reserved)": abi.PAGE_DEVICE.size,
    "offsetof(struct vgpu_region, slot_high) + 4": abi.REGION_HEADER.size,
    "offsetof(struct vgpu_region, columns)": abi.REGION_COLUMNS_OFFSET,
    "offsetof(struct vgpu_region, slots)": abi.REGION_SLOTS_OFFSET,
    "offsetof(struct vgpu_region_column, bucket)": abi.REGION_COLUMN.size,
    "offsetof(struct vgpu_region_column, bucket.waited_ns)": abi.COLUMN_WAITED_OFFSET,
    "offsetof(struct vgpu_region_slot, host_used)": abi.SLOT_HOST_USED_OFFSET,
    "offsetof(struct vgpu_region_slot, managed)": abi.SLOT_MANAGED_OFFSET,
    "VGPU_MANAGED_UNIT": abi.MANAGED_UNIT,
    "VGPU_SEEN_COLUMNS": abi.SEEN_COLUMNS,
    "offsetof(struct vgpu_region_slot, seen)": abi.SLOT_SEEN_OFFSET,
    "offsetof(struct vgpu_region_slot, seen) + 48": abi.REGION_SLOT_USED_OFFSET,
    "offsetof(struct vgpu_region_slot, overhead)": abi.SLOT_OVERHEAD_OFFSET,
    "offsetof(struct vgpu_page_device, alone_until_ns)": abi.PAGE_ALONE_OFFSET,
    "offsetof(struct vgpu_region_slot, used)": abi.REGION_SLOT_USED_OFFSET,
    "offsetof(struct vgpu_region_slot, host_pid)": abi.SLOT_HOST_PID_OFFSET,
    "offsetof(struct vgpu_region_slot, exported) + 128": abi.SLOT_COUNTS_END,
    "offsetof(struct vgpu_region_slot, imports)": abi.SLOT_IMPORTS_OFFSET,
    "VGPU_OWNER_PID_BITS": abi.OWNER_PID_BITS,
    "VGPU_OWNER_NS_BITS": abi.OWNER_NS_BITS,
    "VGPU_OWNER_START_BITS": abi.OWNER_START_BITS,
    "offsetof(struct vgpu_region_slot, owner) + 8": abi.OWNER.size,
}

# C writes a unique value to every field, and the mirror reads it back.
WRITER = """
#include <stdio.h>
#include <string.h>
#include "vgpu_abi.h"
static struct vgpu_page page;
static struct vgpu_region region;
int main(int argc, char **argv) {
    (void)argc;
    page.magic = VGPU_PAGE_MAGIC; page.abi_version = 1; page.size = VGPU_PAGE_BYTES; page.seq = 2;
    page.state = VGPU_PAGE_GRANT; page.epoch = 7; page.device_count = 2;
    strcpy(page.nonce, "slot-3-abc");
    strcpy(page.devices[1].uuid, "GPU-one");
    page.devices[1].memory_limit_bytes = 1234567890123; page.devices[1].cores_percent = 55;
    page.devices[1].core_policy = VGPU_CORES_FORCE; page.devices[1].priority = 4;
    page.devices[1].physical_bytes = 99; page.devices[1].context_bytes = 88;
    page.devices[1].cores_ceiling = 33;
    page.host_limit_bytes = 77;
    region.magic = VGPU_REGION_MAGIC; region.abi_version = 1; region.size = VGPU_REGION_BYTES;
    region.slot_count = VGPU_REGION_SLOTS; region.device_count = VGPU_MAX_DEVICES;
    region.state = VGPU_REGION_READY; region.slot_high = 3;
    region.columns[2].key = 99; strcpy(region.columns[2].uuid, "GPU-two");
    region.columns[2].denied_count = 5; region.columns[2].peak_bytes = 777;
    region.slots[0].used[2] = 100; region.slots[2].used[2] = 11; region.slots[3].used[2] = 1000;
    region.slots[0].managed[2] = 3; region.columns[2].bucket.waited_ns = 44;
    FILE *file = fopen(argv[1], "wb"); fwrite(&page, sizeof page, 1, file); fclose(file);
    file = fopen(argv[2], "wb"); fwrite(&region, sizeof region, 1, file); fclose(file);
    return 0;
}
"""


def compiled(folder: Path, source: str) -> Path:
    (folder / "program.c").write_text(source)
    program = folder / "program"
    subprocess.run(
        ["cc", "-std=c11", "-I", INCLUDE, "-o", program, folder / "program.c"], check=True
    )
    return program


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    lines = "".join(
        f'printf("%llu\\n", (unsigned long long)({expression}));\n' for expression in FACTS
    )
    source = f'#include <stdio.h>\n#include "vgpu_abi.h"\nint main(void) {{\n{lines}return 0; }}\n'
    program = compiled(tmp_path_factory.mktemp("abi"), source)
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return dict(zip(FACTS, map(int, output.split()), strict=True))


@pytest.mark.parametrize("expression", FACTS)
def test_the_mirror_agrees_with_the_header(header: dict[str, int], expression: str) -> None:
    assert int(FACTS[expression]) == header[expression]


def test_files_written_by_c_are_read_field_by_field(tmp_path: Path) -> None:
    page, region = tmp_path / "limits", tmp_path / "region"
    subprocess.run([compiled(tmp_path, WRITER), page, region], check=True)
    content = read_page(page)
    assert (content.state, content.epoch, content.name) == (abi.PageState.GRANT, 7, "slot-3-abc")
    force = abi.CorePolicy.FORCE
    assert content.devices[1] == DeviceLimit("GPU-one", 1234567890123, 55, force, 4, 99, 88, 33)
    assert content.host_bytes == 77
    # Slot 3 is at or above slot_high: never used, so not counted.
    assert read_region(region) == (DeviceUse("GPU-two", 111 + 3 * 65536, 777, 5, 44),)
