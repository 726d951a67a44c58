"""Published machines as rows of `nvidia-smi topo -m`, GPU by GPU.

Each has the listing's part between GPUs, and the NUMA affinity of each GPU; NICs and CPU lists are
left out. `switch_links` says where every GPU reaches every other one over NVSwitch, because the
listing does not show where links end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vgpu_local.nodes import write_sysfs

_SAME = "X"


@dataclass(frozen=True, slots=True)
class Machine:
    """One published machine.

    Attributes:
        name: For the test's name.
        source: Where it was published.
        model: What the driver calls its GPUs.
        words: By row: how that GPU reaches each other one; `X` for itself.
        numa: The NUMA affinity of each GPU.
        nodes: The host's NUMA nodes with CPUs, as the kernel lists them.
        switch_links: Of each GPU: how many NVLinks end at NVSwitches; empty without switches.
        gpu_nodes: Of each GPU: the NUMA node that its own memory is (Grace); empty elsewhere.
    """

    name: str
    source: str
    model: str
    words: tuple[str, ...]
    numa: tuple[int, ...]
    nodes: str
    switch_links: tuple[int, ...] = ()
    gpu_nodes: tuple[int, ...] = ()

    def word(self, one: int, other: int) -> str:
        """Return the word for the path from one GPU to another."""
        return self.words[one].split()[other]

    def uuid(self, index: int) -> str:
        """Return a GPU's UUID."""
        return f"GPU-00000000-0000-4000-8000-{index:012x}"

    def write(self, folder: Path, *, sysfs: bool = True) -> Mapping[str, str]:
        """Write machine file and sysfs tree; return both paths as text.

        Args:
            folder: Where to.
            sysfs: The kernel knows the devices; else the driver's affinity is all there is.
        """
        count = len(self.words)
        buses = [f"0000:{at + 0x10:02x}:00.0" for at in range(count)]
        lines = [
            f'card uuid={self.uuid(at)} model="{self.model}" bus={buses[at]} numa={self.numa[at]} '
            f"numa_of_memory={self.gpu_nodes[at] if self.gpu_nodes else -1} "
            f"switch_links={self.switch_links[at] if self.switch_links else 0}"
            for at in range(count)
        ]
        for one in range(count):
            for other in range(one + 1, count):
                word = self.word(one, other)
                if not word.startswith("NV"):
                    lines.append(f"link {one} {other} level={word}")
                elif not self.switch_links:
                    lines.append(f"link {one} {other} nvlinks={word[2:]}")
        machine, tree = folder / "machine", folder / "sys"
        machine.write_text("\n".join(lines) + "\n")
        places = dict(zip(buses, self.numa, strict=True)) if sysfs else {}
        write_sysfs(tree, places, nodes=self.nodes)
        return {"machine": str(machine), "sysfs": str(tree)}


def _all_pairs(count: int, word: str) -> tuple[str, ...]:
    return tuple(
        " ".join(_SAME if at == other else word for other in range(count)) for at in range(count)
    )


MACHINES = (
    Machine(
        "two_sockets_of_pcie_cards",
        "github.com/NVIDIA/go-gpuallocator issue 17",
        "NVIDIA GeForce RTX 4090",
        _all_pairs(8, "SYS"),
        (0, 0, 0, 0, 1, 1, 1, 1),
        "0-1",
    ),
    Machine(
        "two_sockets_with_cards_on_both_uneven",
        "github.com/noonghunna/club-3090 issue 46",
        "NVIDIA GeForce RTX 4090",
        (
            "X SYS SYS SYS SYS",
            "SYS X PHB NODE NODE",
            "SYS PHB X NODE NODE",
            "SYS NODE NODE X PHB",
            "SYS NODE NODE PHB X",
        ),
        (1, 0, 0, 0, 0),
        "0-1",
    ),
    Machine(
        "two_sockets_with_pcie_switches",
        "github.com/lattice/quda issue 669",
        "Tesla K80",
        (
            "X PIX PXB PXB SYS SYS SYS SYS",
            "PIX X PXB PXB SYS SYS SYS SYS",
            "PXB PXB X PIX SYS SYS SYS SYS",
            "PXB PXB PIX X SYS SYS SYS SYS",
            "SYS SYS SYS SYS X PIX PXB PXB",
            "SYS SYS SYS SYS PIX X PXB PXB",
            "SYS SYS SYS SYS PXB PXB X PIX",
            "SYS SYS SYS SYS PXB PXB PIX X",
        ),
        (0, 0, 0, 0, 1, 1, 1, 1),
        "0-1",
    ),
    Machine(
        "single_socket",
        "github.com/noonghunna/club-3090 issue 1229",
        "NVIDIA GeForce RTX 5090",
        _all_pairs(2, "PHB"),
        (0, 0),
        "0",
    ),
    Machine(
        "dgx_a100",
        "github.com/NVIDIA/nccl issue 1505",
        "NVIDIA A100-SXM4-40GB",
        _all_pairs(8, "NV12"),
        (3, 3, 1, 1, 7, 7, 5, 5),
        "0-7",
        switch_links=(12,) * 8,
    ),
    Machine(
        "dgx_h100",
        "kubernetes.recipes, DGX H100 nvidia-smi topo -m guide",
        "NVIDIA H100 80GB HBM3",
        _all_pairs(8, "NV18"),
        (0, 0, 0, 0, 1, 1, 1, 1),
        "0-1",
        switch_links=(18,) * 8,
    ),
    Machine(
        "hgx_b200_one_numa_node_a_root_complex",
        "github.com/sgl-project/sglang pull request 40055 (NUMA) and issue 8120 (links)",
        "NVIDIA B200",
        _all_pairs(8, "NV18"),
        (0, 0, 2, 2, 3, 3, 5, 5),
        "0-5",
        switch_links=(18,) * 8,
    ),
    Machine(
        "hgx_b200_whose_third_card_has_no_link_up",
        "github.com/vllm-project/vllm issue 16336",
        "NVIDIA B200",
        (
            "X NV18 NODE NV18 NV18 NV18 NV18 NV18",
            "NV18 X NODE NV18 NV18 NV18 NV18 NV18",
            "NODE NODE X NODE SYS SYS SYS SYS",
            "NV18 NV18 NODE X NV18 NV18 NV18 NV18",
            "NV18 NV18 SYS NV18 X NV18 NV18 NV18",
            "NV18 NV18 SYS NV18 NV18 X NV18 NV18",
            "NV18 NV18 SYS NV18 NV18 NV18 X NV18",
            "NV18 NV18 SYS NV18 NV18 NV18 NV18 X",
        ),
        (0, 0, 0, 0, 1, 1, 1, 1),
        "0-1",
        switch_links=(18, 18, 0, 18, 18, 18, 18, 18),
    ),
    Machine(
        "dgx_2",
        "github.com/NVIDIA/nccl-tests issue 78",
        "Tesla V100-SXM3-32GB",
        _all_pairs(16, "NV6"),
        (0,) * 8 + (1,) * 8,
        "0-1",
        switch_links=(6,) * 16,
    ),
    Machine(
        "gb200_compute_tray",
        "github.com/vllm-project/vllm pull request 39361 (nodes of GPU memory), "
        "github.com/ishandhanani/srt-slurm pull request 164 (GPUs of each CPU)",
        "NVIDIA GB200",
        _all_pairs(4, "NV18"),
        (0, 0, 1, 1),
        "0-1",
        switch_links=(18,) * 4,
        gpu_nodes=(2, 10, 18, 26),
    ),
)
