"""One case of PyTorch under the library, in a process of its own; gpu_torch.py starts it.

    torch_case.py memory BYTES           take the whole limit, be refused, free it, continue
    torch_case.py graphs BYTES           capture, replay, and a capture that does not fit
    torch_case.py rate SECONDS WARM_S [--graph]    how often an operation runs, by the card's clock

Allocator and limits come from the environment. Prints JSON objects, one a line; whatever goes wrong
that should not is an exception and an exit status.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

STEPS = 64
SIDE = 1024
STREAMED_BYTES = 512 << 20
BATCH = 8


def say(**figures: Any) -> None:
    """Print one answer."""
    print(json.dumps(figures), flush=True)


def library() -> bool:
    """Return True if the library under test is in this process."""
    return "libvgpu.so" in Path("/proc/self/maps").read_text()


def works() -> bool:
    """Return True if the card still computes."""
    ones = torch.ones(SIDE, SIDE, device="cuda")
    return float((ones @ ones).sum()) == float(SIDE**3)


def memory(limit: int) -> None:
    """Fill to the limit, wait for the end of standard input, free half and take some again."""
    free, total = torch.cuda.mem_get_info(0)
    step = limit // STEPS // (2 << 20) * (2 << 20)
    blocks: list[Any] = []
    refused = False
    while not refused and len(blocks) < 2 * STEPS:
        try:
            blocks.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            refused = True
    reserved = torch.cuda.memory_reserved(0)
    held = len(blocks) * step
    say(free=free, total=total, held=held, reserved=reserved, refused=refused, library=library())
    sys.stdin.read()
    del blocks[len(blocks) // 2 :]
    torch.cuda.empty_cache()
    again = torch.empty(step, dtype=torch.uint8, device="cuda")
    say(again=again.numel() == step, works=works())


def graphs(limit: int) -> None:
    """Replay what was captured; then capture more than fits, and compute on."""
    given = torch.ones(SIDE, SIDE, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # libraries set themselves up outside of captures
        for _ in range(3):
            given @ given
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = given @ given
    for value in (1.0, 2.0):
        given.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        if float(product.sum()) != value * value * SIDE**3:
            raise RuntimeError(f"a replayed graph computed {float(product.sum())}")
    refused = ""
    too_much = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(too_much):
            torch.empty(limit + (64 << 20), dtype=torch.uint8, device="cuda")
    except Exception as error:  # out of memory, or the capture that it broke
        refused = type(error).__name__
    torch.cuda.synchronize()
    say(refused=refused, works=works(), library=library())


def rate(seconds: float, warm_s: float, graph: bool) -> None:
    """Stream through memory, whose clock does not depend on how busy the card is."""
    block = torch.ones(STREAMED_BYTES // 4, device="cuda")

    def operate() -> None:
        for _ in range(BATCH):
            block.mul_(1.0)

    operate()
    torch.cuda.synchronize()
    launch = operate
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            operate()
        launch = captured.replay
    origin = torch.cuda.Event(enable_timing=True)
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    origin.record()
    at_ms: list[float] = []  # when each batch was done
    sent = 0
    while not at_ms or at_ms[-1] < seconds * 1000:
        launch()
        ends[sent % 2].record()
        sent += 1
        if sent > 1:  # another batch is on its way: the card waits for nothing but the limit
            ends[sent % 2].synchronize()
            at_ms.append(origin.elapsed_time(ends[sent % 2]))
    torch.cuda.synchronize()
    counted = [at for at in at_ms if at >= warm_s * 1000]
    if len(counted) < 2:
        raise RuntimeError("nothing ran in the time that counts")
    took_s = (counted[-1] - counted[0]) / 1000
    say(
        per_second=(len(counted) - 1) / took_s,
        launch_us=1e6 * at_ms[-1] / 1e3 / len(at_ms),
        library=library(),
    )


def main() -> None:
    """Run the case that the command line names."""
    kind, *words = sys.argv[1:]
    if not torch.cuda.is_available():
        raise SystemExit("no card for PyTorch")
    if kind == "memory":
        memory(int(words[0]))
    elif kind == "graphs":
        graphs(int(words[0]))
    elif kind == "rate":
        rate(float(words[0]), float(words[1]), graph="--graph" in words)
    else:
        raise SystemExit(f"no case is called {kind}")


if __name__ == "__main__":
    main()
