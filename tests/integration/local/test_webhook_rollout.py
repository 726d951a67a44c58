"""The webhooks are replaced one after the other while pods are created, and no pod is refused."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from vgpu_local import steps
from vgpu_local.cluster import LocalCluster
from vgpu_local.daemon import Daemon
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import a_container, a_pod

pytestmark = pytest.mark.timeout(180)

SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}


@pytest.fixture
def cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    with whole_cluster([t4_node("one")], ClusterOptions(webhooks=2, drain_s=1)) as cluster:
        yield cluster


class Creating:
    """Creates pods one after the other until it is stopped; the first refusal ends it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.created = 0
        self.refused: Exception | None = None
        self._cluster = cluster
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Creating:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._enough.is_set():
            pod = a_pod(f"pod-{self.created}", a_container(limits=SLICE))
            try:
                steps.create(self._cluster, pod)
            except Exception as error:
                self.refused = error
                return
            self.created += 1


def replace(webhook: Daemon, cluster: LocalCluster) -> None:
    webhook.may_end()
    webhook.signal(signal.SIGTERM)
    assert webhook.wait(30) == 0
    webhook.start()
    cluster.wait_ready()


def test_a_rollout_of_the_webhooks_refuses_no_pod(cluster: LocalCluster) -> None:
    with Creating(cluster) as creating:
        for webhook in cluster.webhooks:
            before = creating.created
            replace(webhook, cluster)
            assert creating.refused is None
            assert creating.created > before
