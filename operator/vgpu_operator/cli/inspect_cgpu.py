"""`kubectl inspect cgpu`: Alibaba's table of the allocated GPU memory on each node.

The plugin's executable is `kubectl-inspect-cgpu`. Sizes are whole GiB: capacity is rounded down and
allocated memory up, so that a full device does not look free. Allocated memory is computed from the
claims, because the status of a device may be five seconds old.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from vgpu_api.errors import VgpuError
from vgpu_api.field_errors import describe
from vgpu_api.resources import GPU_DEVICES, NODES
from vgpu_api.v1alpha1 import GPUDevice
from vgpu_client.printing import printable
from vgpu_operator.cli.access import connected
from vgpu_operator.cli.arguments import add_cluster
from vgpu_operator.cli.holdings import NOT_ALLOWED, claims_of, with_holdings
from vgpu_operator.cli.listing import CannotAnswer, listed
from vgpu_operator.cli.parsing import Parser

_GIB_IN_MIB = 1024
_RULE = "-" * 72
_NO_ADDRESS = "N/A"
_INTERRUPTED = 130


def table(nodes: Iterable[Mapping[str, Any]], devices: Iterable[GPUDevice]) -> str:
    """Return the table in the format of Alibaba's plugin: one row per node, then the total.

    Args:
        nodes: The nodes as the API server returns them, in any order.
        devices: All devices; those that do not report a size yet are skipped.
    """
    by_node: dict[str, list[GPUDevice]] = {}
    for device in devices:
        if device.status.allocatable is not None:
            by_node.setdefault(device.spec.node_name, []).append(device)
    most = max((len(found) for found in by_node.values()), default=0)
    rows: list[list[str]] = []
    allocated = total = 0
    for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"])):
        name = node["metadata"]["name"]
        if name not in by_node:
            continue
        ordered = sorted(by_node[name], key=lambda device: device.status.index or 0)
        sizes = [_gib(device) for device in ordered]
        used, has = (sum(size[part] for size in sizes) for part in (0, 1))
        allocated, total = allocated + used, total + has
        shown = [f"{one}/{all_}" for one, all_ in sizes] + ["0/0"] * (most - len(sizes))
        rows.append([name, _address(node), *shown, f"{used}/{has}"])
    header = ["NAME", "IPADDRESS", *(f"GPU{at}(Allocated/Total)" for at in range(most))]
    lines = _aligned([[*header, "GPU Memory(GiB)"], *rows])
    percent = 100 * allocated // total if total else 0
    sums = ["Allocated/Total GPU Memory In Cluster:", f"{allocated}/{total} ({percent}%)"]
    return "\n".join([*lines, _RULE, *sums]) + "\n"


def _gib(device: GPUDevice) -> tuple[int, int]:
    """Return the allocated and the allocatable memory of a device in GiB."""
    status = device.status
    assert status.allocatable is not None
    has = status.allocatable.memory_mib or 0
    used = 0 if status.allocated is None else status.allocated.memory_mib or 0
    return min(-(-used // _GIB_IN_MIB), has // _GIB_IN_MIB), has // _GIB_IN_MIB


def _address(node: Mapping[str, Any]) -> str:
    addresses = (node.get("status") or {}).get("addresses") or []
    found = (each["address"] for each in addresses if each.get("type") == "InternalIP")
    return next(found, _NO_ADDRESS)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Pad columns to their widest cell plus two spaces, without trailing spaces."""
    widths = [max(len(cell) for cell in column) + 2 for column in zip(*rows, strict=True)]
    return [
        "".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


async def _print(options: argparse.Namespace) -> None:
    async with connected(options) as api:
        nodes = (await listed(api, NODES)).items
        devices = (await listed(api, GPU_DEVICES)).items
        claims = await claims_of(api)
    if claims is None:
        print(f"kubectl inspect cgpu: {NOT_ALLOWED}", file=sys.stderr)
    else:
        devices = with_holdings(devices, claims)
    print(table(nodes, map(_decoded, devices)), end="")


def _decoded(raw: Mapping[str, Any]) -> GPUDevice:
    try:
        return GPUDevice.model_validate(raw)
    except ValidationError as error:
        name = raw["metadata"]["name"]
        raise CannotAnswer(f"GPUDevice {name} cannot be read: {describe(error)}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and return the exit status."""
    parser = Parser(
        prog="kubectl inspect cgpu",
        description="Show the allocated GPU memory of each node, as Alibaba's plugin does.",
    )
    add_cluster(parser)
    try:
        asyncio.run(_print(parser.parsed(arguments)))
    except VgpuError as error:
        print(f"kubectl inspect cgpu: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
