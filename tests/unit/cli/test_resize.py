"""A resize changes only the request that is meant, and reports the result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from builders import a_claim, a_pod, a_request, an_allocation
from memory_api import MemoryApi
from set_clock import SetClock
from vgpu_api.resources import PODS, VGPU_CLAIMS, Resource
from vgpu_api.v1alpha1 import ReservedFor, VGPURequest
from vgpu_client.errors import Forbidden
from vgpu_operator.cli.__main__ import main
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.resize import NewSize, Resized, resize


class Cluster(MemoryApi):
    """Has an agent that reports on a changed spec at the third read after the change.

    Attributes:
        report: The status, reason and message of the condition; None: the agent is silent.
    """

    def __init__(self, *requests: VGPURequest, allocated: bool = True) -> None:
        super().__init__()
        self.report: tuple[str, str, str] | None = ("True", "LimitsInPlace", "")
        self.reads = 0
        self.put(PODS, a_pod("train").to_wire())
        allocation = an_allocation() if allocated else None
        claim = a_claim("train-1", requests=requests or None, allocation=allocation).to_wire()
        uid = self.objects["pods", "default", "train"]["metadata"]["uid"]
        claim["status"]["reservedFor"] = ReservedFor(pod_name="train", pod_uid=uid).to_wire()
        self.put(VGPU_CLAIMS, claim)

    async def list(self, resource: Resource, **_: Any) -> Any:
        found = [obj for (plural, _, _), obj in self.objects.items() if plural == resource.plural]
        return SimpleNamespace(items=[self.copied(obj) for obj in found])

    async def json_patch(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        await super().json_patch(*args, **kwargs)
        claim = self.claim("train-1")
        claim["metadata"]["generation"] = 2
        return self.copied(claim)

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        claim = self.claim("train-1")
        self.reads += claim["metadata"]["generation"] == 2
        if self.reads == 3 and self.report is not None:
            status, reason, message = self.report
            condition = {"type": "Resized", "status": status, "reason": reason, "message": message}
            claim["status"]["conditions"] = [{**condition, "observedGeneration": 2}]
        return await super().get(resource, name, namespace=namespace)

    @property
    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.claim("train-1")["spec"]["requests"]
        return found


async def resized(
    cluster: Cluster, subject: str = "pod/train", container: str | None = None, **size: Any
) -> Resized:
    return await resize(
        cluster,  # type: ignore[arg-type]
        subject,
        "default",
        NewSize(**size),
        container=container,
        wait_s=5,
        clock=SetClock(),
    )


@pytest.mark.parametrize("subject", ["pod/train", "train", "claim/train-1", "train-1"])
async def test_a_slice_is_resized_by_its_pod_or_its_claim(subject: str) -> None:
    cluster = Cluster()
    found = await resized(cluster, subject, memory="2Gi", cores=50)
    assert (cluster.requests[0]["memory"], cluster.requests[0]["cores"]) == ("2Gi", 50)
    assert found == Resized("claim default/train-1: asks 1 × 2Gi, 50 %; in force", is_in_force=True)


async def test_what_is_not_named_stays() -> None:
    cluster = Cluster(a_request(memory="1Gi", cores=30))
    await resized(cluster, memory="2Gi")
    assert cluster.requests[0]["cores"] == 30


async def test_a_size_takes_the_place_of_a_percentage_and_back() -> None:
    cluster = Cluster(a_request(memory_percent=50))
    await resized(cluster, memory="2Gi")
    assert "memoryPercent" not in cluster.requests[0]
    cluster.claim("train-1")["metadata"]["generation"] = 1
    await resized(cluster, memory_percent=10)
    assert cluster.requests[0].get("memory") is None
    assert cluster.requests[0]["memoryPercent"] == 10


async def test_a_refusal_is_told_in_the_agents_words() -> None:
    cluster = Cluster()
    cluster.report = ("False", "InUse", "1Gi asked, 3Gi in use")
    found = await resized(cluster, memory="512Mi")
    assert not found.is_in_force
    assert found.text.endswith("; not in force: InUse: 1Gi asked, 3Gi in use")


async def test_silence_is_told_after_the_time_to_wait() -> None:
    cluster = Cluster()
    cluster.report = None
    found = await resized(cluster, memory="2Gi")
    assert not found.is_in_force
    assert found.text.endswith("; no result after 5 s")


async def test_an_old_result_is_not_taken_for_the_new_one() -> None:
    cluster = Cluster()
    old = {"type": "Resized", "status": "True", "reason": "LimitsInPlace", "observedGeneration": 1}
    cluster.claim("train-1")["status"]["conditions"] = [old]
    cluster.report = None
    assert not (await resized(cluster, memory="2Gi")).is_in_force


async def test_a_claim_without_devices_just_asks_for_another_size() -> None:
    found = await resized(Cluster(allocated=False), memory="2Gi")
    assert found.is_in_force
    assert found.text.endswith("it has no devices yet")


async def test_the_same_size_writes_nothing() -> None:
    cluster = Cluster()
    assert (await resized(cluster, memory="1Gi")).text.endswith("unchanged")
    assert cluster.claim("train-1")["metadata"]["generation"] == 1


async def test_of_several_containers_the_named_one_is_resized() -> None:
    both = (a_request(name="a", memory="1Gi"), a_request(name="b", memory="1Gi"))
    cluster = Cluster(*both)
    with pytest.raises(CannotAnswer, match="use -c with one of a, b"):
        await resized(cluster, memory="2Gi")
    with pytest.raises(CannotAnswer, match="container c has no request; these have: a, b"):
        await resized(cluster, container="c", memory="2Gi")
    await resized(cluster, container="b", memory="2Gi")
    assert [request["memory"] for request in cluster.requests] == ["1Gi", "2Gi"]


async def test_the_refusal_of_the_api_server_is_the_answer() -> None:
    cluster = Cluster()
    refusal = Forbidden("vgpuclaims is forbidden", status=403)
    cluster.before = lambda verb, name: refusal if "patch" in verb else None
    with pytest.raises(Forbidden):
        await resized(cluster, memory="2Gi")


@pytest.mark.parametrize(
    ("subject", "said"),
    [("pod/none", "no pod none"), ("node/x", "use NAME, pod/NAME or claim/NAME")],
)
async def test_what_is_not_there_is_named(subject: str, said: str) -> None:
    with pytest.raises(CannotAnswer, match=said):
        await resized(Cluster(), subject, memory="2Gi")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "use --memory, --memory-percent or --cores"),
        (("--memory", "1Gi", "--memory-percent", "5"), "not both"),
    ],
)
def test_a_size_is_given_once(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["resize", "pod/train", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--memory", "1Gb"), ("--cores", "101"), ("--cores", "-1")])
def test_a_size_that_cannot_be_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit):
        main(["resize", "pod/train", *words])
    assert words[0] in capsys.readouterr().err
