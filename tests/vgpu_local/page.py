"""The web page as a process, and a client that sends requests like a browser."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from vgpu_local.daemon import Daemon, Spawn, execute
from vgpu_local.daemons import Daemons
from vgpu_local.pki import Authority
from vgpu_local.ports import free_ports
from vgpu_local.programs import web_command

_LIMIT_S = 30.0


def start_page(
    daemons: Daemons, *, folder: Path, kubeconfig: Path, config: Path, spawn: Spawn = execute
) -> Page:
    """Start the web page, and wait until it has read the cluster.

    Args:
        daemons: The processes to add its process to.
        folder: The folder for log and certificate.
        kubeconfig: The kubeconfig of its account.
        config: The cluster's configuration.
        spawn: Starts the process.

    Raises:
        TimeoutError: It has not read the cluster after 30 s.
        DaemonDied: Its process has ended.
    """
    authority, (port,) = Authority(name="vgpu-web"), free_ports(1)
    tls = authority.leaf().write(folder, name="web")
    command = web_command(port, kubeconfig=kubeconfig, config=config, tls=tls)
    daemon = daemons.start("vgpu-web", command, {}, folder=folder, spawn=spawn)
    trust = ssl.create_default_context(cadata=authority.certificate.decode())
    page = Page(f"https://localhost:{port}", trust, daemon)
    page.wait_ready(_LIMIT_S)
    return page


@dataclass(frozen=True, slots=True)
class Page:
    """A running web page.

    Attributes:
        url: Its URL, without a slash at the end.
        trust: The TLS context that trusts its certificate.
        daemon: Its process.
    """

    url: str
    trust: ssl.SSLContext
    daemon: Daemon

    def get(self, path: str, token: str = "", *, body: str | None = None) -> tuple[int, Any]:
        """Send a GET, or a POST if there is a body; return the status and the document.

        Raises:
            OSError: There is no answer.
        """
        try:
            with self._opened(path, token, {}, body) as answer:
                return answer.status, _document(answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, _document(refused.read())

    @contextmanager
    def stream(self, path: str, token: str) -> Iterator[Iterator[Any]]:
        """Yield the documents of a view as they come; the last is `{"status": …, "error": …}`.

        Raises:
            OSError: There is no answer, or none for 30 s.
        """
        with self._opened(path, token, {"Accept": "text/event-stream"}, None) as answer:
            lines = (line.removeprefix(b"data: ") for line in answer if line.startswith(b"data: "))
            yield (json.loads(line) for line in lines)

    def wait_ready(self, limit: float) -> None:
        """Wait until it has read the cluster.

        Raises:
            TimeoutError: It has not after `limit` seconds.
            DaemonDied: Its process has ended.
        """
        deadline, seen = time.monotonic() + limit, ""
        while True:
            self.daemon.check()
            try:
                status, seen = self.get("/readyz")
            except OSError as error:
                status, seen = 0, str(error)
            if status == 200:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the web page is not ready after {limit:g} s: {seen}")
            time.sleep(0.05)

    def _opened(
        self, path: str, token: str, headers: Mapping[str, str], body: str | None
    ) -> HTTPResponse:
        given = {"Authorization": f"Bearer {token}", **headers} if token else dict(headers)
        data = None if body is None else body.encode()
        asked = urllib.request.Request(self.url + path, data=data, headers=given)
        answer = urllib.request.urlopen(asked, timeout=_LIMIT_S, context=self.trust)
        assert isinstance(answer, HTTPResponse)
        return answer


def _document(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except json.JSONDecodeError:
        return raw.decode()
