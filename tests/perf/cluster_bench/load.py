"""Creates pods all at once and measures the time until each has a node.

It is a process of its own, with the protocol of `timed`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from perf.cluster_bench.timed import NAMESPACE, TimedCreates, print_times
from vgpu_api.resources import PODS
from vgpu_client.api import Api
from vgpu_client.reflector import Scope
from vgpu_client.transport import Object

LABEL = "bench"

DEVICES: Mapping[str, object] = {
    "nvidia.com/gpu": 1,
    "nvidia.com/gpumem": 8000,
    "nvidia.com/gpucores": 10,
}
"""A slice of a device in HAMi's words."""


def a_pod(run: str, number: int, *, with_devices: bool, template: str = "") -> Object:
    """Return a pod as a user writes it.

    Args:
        run: Its label, and the prefix of its name.
        number: The rest of its name.
        with_devices: It asks for a slice in HAMi's words.
        template: The ResourceClaimTemplate by which it asks for a device of another driver.
    """
    limits = dict(DEVICES) if with_devices else {}
    claims = [{"name": "gpu", "resourceClaimTemplateName": template}] if template else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{run}-{number}", "namespace": NAMESPACE, "labels": {LABEL: run}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": claims,
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "128Mi"},
                        "limits": limits,
                        "claims": [{"name": claim["name"]} for claim in claims],
                    },
                }
            ],
        },
    }


def is_bound(pod: Object) -> bool:
    """Return True if the pod has a node."""
    return bool(pod["spec"].get("nodeName"))


async def main() -> None:
    """Read the arguments and run the load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="of an administrator")
    parser.add_argument("--run", required=True, help="label of the pods, and prefix of their names")
    parser.add_argument("--pods", type=int, required=True, help="number of pods")
    parser.add_argument("--with-devices", action="store_true", help="each pod asks for a slice")
    parser.add_argument("--template", default="", help="make a claim for each pod from it")
    parser.add_argument("--limit", type=float, required=True, help="seconds")
    options = parser.parse_args()
    pods = [
        a_pod(options.run, n, with_devices=options.with_devices, template=options.template)
        for n in range(options.pods)
    ]
    scope = Scope(label_selector=f"{LABEL}={options.run}")
    async with Api.connect(options.kubeconfig) as api:
        creates = TimedCreates(api, PODS, pods, is_done=is_bound, scope=scope)
        print_times(await creates.run(limit_s=options.limit))


if __name__ == "__main__":
    asyncio.run(main())
