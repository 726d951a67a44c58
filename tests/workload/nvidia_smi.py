#!/usr/bin/env python3
"""A stand-in for nvidia-smi on nodes without NVIDIA's driver that shows users their slice.

It asks NVML through the real pynvml, so with libvgpu loaded it shows the container's limits, just
as the real program does. It is one file that needs only pynvml, because it is copied into the test
image.

Its output follows the essentials of the real one: the table, `-L`, `--query-gpu`,
`--query-compute-apps` and `topo -m`, with the same words, order and exit codes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

MIB = 1 << 20
NOT_AVAILABLE = "[N/A]"
EXIT_USAGE, EXIT_NO_DEVICES, EXIT_NO_DRIVER = 2, 6, 9

_LEFT, _MIDDLE, _RIGHT = 41, 24, 22
_WIDE = _LEFT + _MIDDLE + _RIGHT + 2
_HEADS = (" Volatile Uncorr. ECC ", " GPU-Util  Compute M. ", "MIG M. ")
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's topology levels as nvidia-smi prints them."""


class UsageError(Exception):
    """The command line requests something that does not exist."""


class Gpu:
    """One device as NVML shows it; missing values are None."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = _text(pynvml.nvmlDeviceGetUUID(self.handle))
        self.name = _text(pynvml.nvmlDeviceGetName(self.handle))
        self.memory = pynvml.nvmlDeviceGetMemoryInfo(self.handle)

    def ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return an NVML call's result, or None if device or driver does not support it."""
        try:
            return call(self.handle, *arguments)
        except pynvml.NVMLError:
            return None

    @property
    def bus_id(self) -> str:
        """Return the device's PCI address."""
        info = self.ask(pynvml.nvmlDeviceGetPciInfo)
        return _text(info.busId) if info is not None else ""

    @property
    def processes(self) -> Sequence[Any]:
        """Return the processes that compute on the device, with pid and usedGpuMemory in bytes."""
        return self.ask(pynvml.nvmlDeviceGetComputeRunningProcesses) or ()

    @property
    def utilization(self) -> Any:
        """Return the recent utilization in percent: GPU, memory."""
        return self.ask(pynvml.nvmlDeviceGetUtilizationRates)

    @property
    def power(self) -> tuple[float | None, float | None]:
        """Return the power draw and the power limit in watts."""
        drawn = self.ask(pynvml.nvmlDeviceGetPowerUsage)
        limit = self.ask(pynvml.nvmlDeviceGetPowerManagementLimit)
        return _scaled(drawn, 1000), _scaled(limit, 1000)

    @property
    def mig(self) -> str | None:
        """Return the device's MIG mode, or None if it has none."""
        mode = self.ask(pynvml.nvmlDeviceGetMigMode)
        return None if mode is None else ("Disabled", "Enabled")[mode[0]]

    @property
    def temperature(self) -> int | None:
        """Return the temperature in degrees Celsius."""
        return self.ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)

    @property
    def state(self) -> str:
        """Return the performance state."""
        state = self.ask(pynvml.nvmlDeviceGetPerformanceState)
        return "N/A" if state is None else f"P{state}"


Field = tuple[str, Callable[[Any], Any]]
"""A column's unit (empty: none), and what stands in it."""

GPU_FIELDS: Mapping[str, Field] = {
    "index": ("", lambda gpu: gpu.index),
    "count": ("", lambda gpu: pynvml.nvmlDeviceGetCount()),
    "name": ("", lambda gpu: gpu.name),
    "gpu_name": ("", lambda gpu: gpu.name),
    "uuid": ("", lambda gpu: gpu.uuid),
    "gpu_uuid": ("", lambda gpu: gpu.uuid),
    "pci.bus_id": ("", lambda gpu: gpu.bus_id),
    "driver_version": ("", lambda gpu: _driver_version()),
    "compute_cap": ("", lambda gpu: _dotted(gpu.ask(pynvml.nvmlDeviceGetCudaComputeCapability))),
    "memory.total": ("MiB", lambda gpu: gpu.memory.total // MIB),
    "memory.used": ("MiB", lambda gpu: gpu.memory.used // MIB),
    "memory.free": ("MiB", lambda gpu: gpu.memory.free // MIB),
    "utilization.gpu": ("%", lambda gpu: getattr(gpu.utilization, "gpu", None)),
    "utilization.memory": ("%", lambda gpu: getattr(gpu.utilization, "memory", None)),
    "temperature.gpu": ("", lambda gpu: gpu.temperature),
    "power.draw": ("W", lambda gpu: _two_digits(gpu.power[0])),
    "power.limit": ("W", lambda gpu: _two_digits(gpu.power[1])),
    "pstate": ("", lambda gpu: gpu.state),
    "mig.mode.current": ("", lambda gpu: gpu.mig),
}
APP_FIELDS: Mapping[str, Field] = {
    "gpu_uuid": ("", lambda app: app[0].uuid),
    "gpu_name": ("", lambda app: app[0].name),
    "gpu_bus_id": ("", lambda app: app[0].bus_id),
    "pid": ("", lambda app: app[1].pid),
    "process_name": ("", lambda app: _process_name(app[1].pid)),
    "name": ("", lambda app: _process_name(app[1].pid)),
    "used_gpu_memory": ("MiB", lambda app: _scaled(app[1].usedGpuMemory, MIB)),
    "used_memory": ("MiB", lambda app: _scaled(app[1].usedGpuMemory, MIB)),
}


def table(gpus: Sequence[Gpu]) -> list[str]:
    """Return the table that nvidia-smi prints."""
    version = _driver_version()
    title = f" NVIDIA-SMI {version:<23}Driver Version: {version:<14} CUDA Version: {_cuda()}"
    lines = [
        datetime.now().strftime("%a %b %e %H:%M:%S %Y"),
        _rule("-"),
        f"|{title:<{_WIDE}}|",
        _columns("-", "|"),
        _row(" GPU  Name                 Persistence-M ", " Bus-Id          Disp.A ", _HEADS[0]),
        _row(" Fan  Temp   Perf          Pwr:Usage/Cap ", "           Memory-Usage ", _HEADS[1]),
        _row("", "", _HEADS[2]),
        _columns("=", "|"),
    ]
    for gpu in gpus:
        lines += _of_device(gpu)
    lines += [
        "",
        _rule("-"),
        f"|{' Processes:':<{_WIDE}}|",
        f"|{'  GPU   GI   CI              PID   Type   Process name':<70}"
        f"{'GPU Memory ':>{_WIDE - 70}}|",
        f"|{'        ID   ID':<70}{'Usage      ':>{_WIDE - 70}}|",
        f"|{'=' * _WIDE}|",
    ]
    running = [(gpu, process) for gpu in gpus for process in gpu.processes]
    for gpu, process in running:
        name = _process_name(process.pid)[:27]
        memory = _scaled(process.usedGpuMemory, MIB)
        used = "N/A" if memory is None else f"{memory:.0f}MiB"
        text = f"{gpu.index:>5}   N/A  N/A {process.pid:>16}      C   {name:<27}"
        lines.append(f"|{text:<70}{used + ' ':>{_WIDE - 70}}|")
    if not running:
        lines.append(f"|{'  No running processes found':<{_WIDE}}|")
    return [*lines, _rule("-")]


def _of_device(gpu: Gpu) -> list[str]:
    drawn, limit = (_or("N/A", f"{watts:.0f}W" if watts else None) for watts in gpu.power)
    temperature = _or("N/A", gpu.temperature, "C")
    memory = f"{gpu.memory.used // MIB:>8}MiB / {gpu.memory.total // MIB:>6}MiB "
    busy = _or("N/A", getattr(gpu.utilization, "gpu", None), "%")
    return [
        _row(f"{gpu.index:>4}  {gpu.name[:28]:<29}  Off ", f" {gpu.bus_id:<16} Off ", "N/A "),
        _row(
            f" N/A {temperature:>5} {gpu.state:>5} {drawn:>13} / {limit:>6} ",
            memory,
            f"{busy} {'Default':>11} ",
        ),
        _row("", "", f"{gpu.mig or 'N/A'} "),
        _columns("-", "+"),
    ]


def _row(left: str, middle: str, right: str) -> str:
    return f"|{left:>{_LEFT}}|{middle:>{_MIDDLE}}|{right:>{_RIGHT}}|"


def _columns(line: str, end: str) -> str:
    return f"{end}{line * _LEFT}+{line * _MIDDLE}+{line * _RIGHT}{end}"


def _rule(line: str) -> str:
    return f"+{line * _WIDE}+"


def queried(
    fields: Mapping[str, Field], wanted: str, rows: Sequence[Any], options: Sequence[str]
) -> list[str]:
    """Return the requested fields of every row as comma-separated values.

    Raises:
        UsageError: there is no such field, or the format is not CSV.
    """
    if "csv" not in options or set(options) - {"csv", "noheader", "nounits"}:
        raise UsageError('"--format=" must be csv, with noheader and nounits if you like.')
    names = [name.strip() for name in wanted.split(",")]
    for name in names:
        if name not in fields:
            raise UsageError(f'Field "{name}" is not a valid field to query.')
    with_units = "nounits" not in options
    lines = []
    if "noheader" not in options:
        units = (fields[name][0] if with_units else "" for name in names)
        heads = zip(names, units, strict=True)
        lines.append(", ".join(f"{name} [{unit}]" if unit else name for name, unit in heads))
    for row in rows:
        values = ((fields[name][1](row), fields[name][0] if with_units else "") for name in names)
        lines.append(", ".join(_value(value, unit) for value, unit in values))
    return lines


def _value(value: Any, unit: str) -> str:
    if value is None:
        return NOT_AVAILABLE
    text = f"{value:.0f}" if isinstance(value, float) else str(value)
    return f"{text} {unit}" if unit else text


def listed(gpu: Gpu) -> list[str]:
    """Return a device and, below it, its MIG instances."""
    lines = [f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})"]
    for number in range(gpu.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0):
        part = gpu.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, number)
        if part is not None:
            profile = _text(pynvml.nvmlDeviceGetName(part)).rpartition("MIG ")[2]
            uuid = _text(pynvml.nvmlDeviceGetUUID(part))
            lines.append(f"  MIG {profile:<12}Device {number:>2}: (UUID: {uuid})")
    return lines


def topology(gpus: Sequence[Gpu]) -> list[str]:
    """Return the matrix of links between devices, with their NUMA nodes."""
    heads = [f"GPU{gpu.index}" for gpu in gpus]
    lines = ["\t".join(["", *heads, "NUMA Affinity"])]
    for gpu, head in zip(gpus, heads, strict=True):
        cells = ["X" if other is gpu else _between(gpu, other) for other in gpus]
        words = gpu.ask(pynvml.nvmlDeviceGetMemoryAffinity, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
        numa = "N/A" if words is None else str(int(words[0]).bit_length() - 1)
        lines.append("\t".join([head, *cells, numa]))
    return lines


def _between(one: Gpu, other: Gpu) -> str:
    links = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if one.ask(pynvml.nvmlDeviceGetNvLinkState, link) != pynvml.NVML_FEATURE_ENABLED:
            continue
        remote = one.ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, link)
        links += remote is not None and _text(remote.busId).lower() == other.bus_id.lower()
    level = one.ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, other.handle)
    return f"NV{links}" if links else _LEVELS.get(level, "SYS")


def chosen(gpus: Sequence[Gpu], wanted: str) -> list[Gpu]:
    """Return the devices that `-i` names by index, UUID or bus id; all without `-i`.

    Raises:
        UsageError: there is no such device.
    """
    if not wanted:
        return list(gpus)
    by_name = {name: gpu for gpu in gpus for name in (str(gpu.index), gpu.uuid, gpu.bus_id)}
    try:
        return [by_name[name.strip()] for name in wanted.split(",")]
    except KeyError:
        raise UsageError("No devices were found") from None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _or(default: str, value: Any, unit: str = "") -> str:
    return default if value is None else f"{value}{unit}"


def _scaled(value: int | None, unit: int) -> float | None:
    return None if value is None else value / unit


def _two_digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else ".".join(map(str, version))


def _driver_version() -> str:
    return _text(pynvml.nvmlSystemGetDriverVersion())


def _cuda() -> str:
    version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    return f"{version // 1000}.{version % 1000 // 10}"


def _process_name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "[Not Found]"
    return words[0].decode(errors="replace") or "[Not Found]"


def _print_all(arguments: argparse.Namespace) -> None:
    gpus = [Gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    gpus = chosen(gpus, arguments.id)
    options = [word.strip() for word in arguments.format.split(",") if word.strip()]
    if arguments.topo:
        lines = topology(gpus)
    elif arguments.list_gpus:
        lines = [line for gpu in gpus for line in listed(gpu)]
    elif arguments.query_gpu:
        lines = queried(GPU_FIELDS, arguments.query_gpu, gpus, options)
    elif arguments.query_compute_apps:
        apps = [(gpu, process) for gpu in gpus for process in gpu.processes]
        lines = queried(APP_FIELDS, arguments.query_compute_apps, apps, options)
    else:
        lines = table(gpus)
    print("\n".join(lines) if gpus else "No devices were found")


def main(words: Sequence[str] | None = None) -> int:
    """Print what the command line requests; return the exit code."""
    parser = argparse.ArgumentParser("nvidia-smi", description="What NVML says of the cards here.")
    option = partial(parser.add_argument, default="")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    option("-i", "--id")
    option("--query-gpu")
    option("--query-compute-apps")
    option("--format")
    option("topo", nargs="?", choices=["", "topo"])
    parser.add_argument("-m", "--matrix", action="store_true", help="of topo")
    arguments = parser.parse_args(words)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
            f"{error}"
        )
        return EXIT_NO_DRIVER
    try:
        if pynvml.nvmlDeviceGetCount() == 0:
            print("No devices were found")
            return EXIT_NO_DEVICES
        _print_all(arguments)
    except UsageError as error:
        print(error)
        return EXIT_USAGE
    finally:
        pynvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
