"""Creates Immediate claims at a steady rate and measures the time until each has its device.

It is a process of its own, with the protocol of `timed`.
"""

from __future__ import annotations

import argparse
import asyncio

from perf.cluster_bench.timed import NAMESPACE, TimedCreates, print_times
from vgpu_api.names import API_VERSION
from vgpu_api.resources import VGPU_CLAIMS
from vgpu_client.api import Api
from vgpu_client.transport import Object

_PREFIX = "now"


def a_claim(number: int) -> Object:
    """Return a claim as a user writes it, with the size of a pod of the load."""
    return {
        "apiVersion": API_VERSION,
        "kind": VGPU_CLAIMS.kind,
        "metadata": {"name": f"{_PREFIX}-{number}", "namespace": NAMESPACE},
        "spec": {"bindingMode": "Immediate", "requests": [{"memory": "8000Mi", "cores": 10}]},
    }


def is_allocated(claim: Object) -> bool:
    """Return True if the claim has its device."""
    return bool((claim.get("status") or {}).get("allocation"))


async def main() -> None:
    """Read the arguments and create the claims."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="of an administrator")
    parser.add_argument("--count", type=int, required=True, help="number of claims")
    parser.add_argument("--rate", type=float, required=True, help="claims a second")
    parser.add_argument("--limit", type=float, required=True, help="seconds")
    options = parser.parse_args()
    async with Api.connect(options.kubeconfig) as api:
        claims = [a_claim(number) for number in range(options.count)]
        creates = TimedCreates(api, VGPU_CLAIMS, claims, is_done=is_allocated, rate=options.rate)
        print_times(await creates.run(limit_s=options.limit))


if __name__ == "__main__":
    asyncio.run(main())
