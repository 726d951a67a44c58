"""The operator exits when the API server's data is restored from a backup, and is restarted."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from builders import a_node
from vgpu_api.resources import NODES
from vgpu_client.api import Api
from vgpu_local.apiserver import ApiServer
from vgpu_local.background import BackgroundLoop
from vgpu_local.daemon import Daemon
from vgpu_local.pki import Authority
from vgpu_local.programs import free_replica, operator_command, program_environment

pytestmark = pytest.mark.timeout(240)

LIMIT_S = 90.0


def test_an_operator_ends_loudly_when_the_data_under_it_were_restored(tmp_path: Path) -> None:
    replica, config = free_replica(0), tmp_path / "config.yaml"
    config.write_text("{}")
    with contextlib.ExitStack() as undo:
        server = undo.enter_context(ApiServer())
        loop = BackgroundLoop("restored")
        undo.callback(loop.stop)
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        api = loop.enter(Api.connect(str(kubeconfig)), undo)
        for number in range(200):
            loop.run(api.create(NODES, a_node(f"node-{number}").to_wire()))
        command = operator_command(
            replica,
            kubeconfig=kubeconfig,
            config=config,
            authority=Authority(),
            folder=tmp_path,
            lease_s=5,
            log_level="INFO",
        )
        environment = program_environment(tmp_path, {})
        operator = Daemon("operator", command, environment, tmp_path / "operator.log")
        undo.callback(operator.stop)
        operator.start()
        until = time.monotonic() + LIMIT_S
        while not server.watch_count("nodes"):
            operator.check()
            assert time.monotonic() < until, operator.tail()
            time.sleep(0.05)
        server.restart(keep_data=False)
        assert operator.wait(LIMIT_S) == 1
        assert ": the API server is at version" in operator.said()  # any kind may be the first
        assert "a backup of its data was restored" in operator.said()
