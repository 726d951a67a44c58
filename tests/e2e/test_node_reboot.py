"""A node has lost power: the records on its disk give no device to a pod without a claim."""

from __future__ import annotations

import pytest

from real_node import Json, RealNode, a_deployment, a_slice, until

MIB = 1 << 20

pytestmark = pytest.mark.timeout(900)


def test_after_a_reboot_controllers_replace_their_pods_and_no_stale_grant_holds(
    node: RealNode, namespace: str
) -> None:
    node.nothing_is_left()
    replaced = a_deployment("replaced", namespace, replicas=3, limits=a_slice(6000))
    node.apply(replaced)
    until(lambda: _three(node, replaced), "three pods to run", limit_s=180)
    before = _pods_of_open_claims(node, namespace)

    node.off()
    node.on()
    pods = until(lambda: _three(node, replaced), "three pods to run again", limit_s=400)
    for name in pods:
        assert node.filled(namespace, name) == 6000 * MIB
    # Every open grant belongs to a claim of a pod that runs now, not to a claim from before.
    until(
        lambda: _open_doors(node) == len(_pods_of_open_claims(node, namespace)) == 3,
        f"no doors but three; pods before {before}, now {_pods_of_open_claims(node, namespace)}",
    )
    node.clear(namespace)
    node.nothing_is_left()


def _three(node: RealNode, deployment: Json) -> list[str]:
    running = node.running(deployment)
    return running if len(running) == 3 else []


def _open_doors(node: RealNode) -> int:
    return len(node.run("ls", "/run/cdi").split())


def _pods_of_open_claims(node: RealNode, namespace: str) -> set[str]:
    """Return the UIDs of the pods whose claims have devices."""
    claims = node.get("vgpuclaims", namespace=namespace)["items"]
    return {
        claim["status"]["reservedFor"]["podUID"]
        for claim in claims
        if claim["status"].get("allocation") and claim["status"].get("reservedFor")
    }
