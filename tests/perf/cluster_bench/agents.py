"""Keeps the connections that the agents of many nodes keep to the API server; its own process.

Each agent has its own TLS connection with HTTP/1.1, as the real one has, and watches the pods of
its node on it. When a pod comes to its node, it reads the pod's claim and the devices allocated to
it, as the real agent does before the container starts. All agents act as an administrator, so the
cost of impersonating the node at the start of a watch is missing.

It prints `ready` when every watch has been answered, and the counts so far for each line on its
standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import random
import re
import resource
import selectors
import socket
import ssl
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPResponse, HTTPSConnection, RemoteDisconnected
from urllib.parse import urlsplit

from perf.cluster_bench.load import LABEL
from perf.cluster_bench.paper import node_name
from vgpu_api.names import API_VERSION, pod_claim_name
from vgpu_api.resources import GPU_DEVICES, VGPU_CLAIMS
from vgpu_client.connection import Connection, login
from vgpu_client.transport import Object

WATCH_S = 300
"""As in `vgpu_client.reflector`; the first of each ends earlier, lest they all end at once."""
_CONNECTING = 16
_READING = 8
_POD = re.compile(rb'"metadata":\{"name":"([^"]+)","namespace":"([^"]+)","uid":"([^"]+)"')
_VERSION = re.compile(rb'"resourceVersion":"(\d+)"')


@dataclass(slots=True)
class Watch:
    """The watch of one node's agent.

    Attributes:
        node: The node's name.
        socket: The connection.
        version: The version of the last event.
        unread: The received part of an incomplete line.
        last: The last complete line.
        seen: UIDs of the pods whose claims have been read.
    """

    node: str
    socket: ssl.SSLSocket
    version: str = "0"
    unread: bytes = b""
    last: bytes = b""
    seen: set[bytes] = field(default_factory=set)


class SimulatedAgents:
    """The agents of nodes 0 to `count` - 1.

    Args:
        connection: The address of the API server.
        token: A bearer token for it.
        count: The number of agents.
    """

    def __init__(self, connection: Connection, token: str, count: int) -> None:
        assert connection.tls is not None
        self._tls = connection.tls
        self._host, self._port = urlsplit(connection.server).netloc.rsplit(":", 1)
        self._head = f"Host: {self._host}\r\nAuthorization: {token}\r\nAccept: application/json\r\n"
        self._token = token
        self._nodes = [node_name(number) for number in range(count)]
        self._selector = selectors.DefaultSelector()
        self._claims: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Open all connections and start the watches."""
        for _ in range(_READING):
            threading.Thread(target=self._read_claims, daemon=True).start()
        with ThreadPoolExecutor(_CONNECTING) as pool:
            for watch, said in pool.map(self._connected, self._nodes):
                self.counts["watches"] += 1
                watch.socket.setblocking(False)
                self._selector.register(watch.socket, selectors.EVENT_READ, watch)
                self._take(watch, said)

    def follow(self) -> None:
        """Read the events until cancelled."""
        while True:
            for key, _ in self._selector.select():
                watch: Watch = key.data
                try:
                    while said := watch.socket.recv(65536):
                        self._take(watch, said)
                    raise ConnectionError(f"the watch of {watch.node} was closed")
                except ssl.SSLWantReadError:
                    continue

    def _connected(self, node: str) -> tuple[Watch, bytes]:
        """Return a watch that the API server has answered, and the events received so far.

        The API server closes a connection that brings no request within 32 s.
        """
        plain = socket.create_connection((self._host, int(self._port)))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch = Watch(node, self._tls.wrap_socket(plain, server_hostname=self._host))
        self._ask(watch, random.randint(WATCH_S // 10, WATCH_S))
        said = b""
        while b"\r\n\r\n" not in said:
            more = watch.socket.recv(4096)
            if not more:
                raise ConnectionError(f"the watch of {node} was not answered")
            said += more
        if not said.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(said.decode(errors="replace"))
        return watch, said.partition(b"\r\n\r\n")[2]

    def _ask(self, watch: Watch, seconds: int) -> None:
        path = (
            f"/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3D{watch.node}"
            f"&resourceVersion={watch.version}&allowWatchBookmarks=true&timeoutSeconds={seconds}"
        )
        watch.socket.sendall(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())

    def _take(self, watch: Watch, said: bytes) -> None:
        *lines, watch.unread = (watch.unread + said).split(b"\n")
        for line in lines:
            last, watch.last = watch.last, line
            if line == b"\r" and last == b"0\r":  # the end of the last chunk
                self._ask_again(watch)
            if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                raise RuntimeError(f"the watch of {watch.node}: {line!r}")
            if b'"type":' not in line:
                continue  # chunk sizes and headers
            self.counts["bookmarks" if b'"BOOKMARK"' in line else "events"] += 1
            if versions := _VERSION.findall(line):
                watch.version = versions[0].decode()
            found = _POD.search(line)
            if found and f'"{LABEL}":"'.encode() in line and found[3] not in watch.seen:
                watch.seen.add(found[3])
                name, namespace, uid = (each.decode() for each in found.groups())
                claim = pod_claim_name(name, uid)
                self._claims.put(f"namespaces/{namespace}/{VGPU_CLAIMS.plural}/{claim}")

    def _ask_again(self, watch: Watch) -> None:
        watch.socket.setblocking(True)
        self._ask(watch, WATCH_S)
        self.counts["watches"] += 1
        watch.socket.setblocking(False)

    def _read_claims(self) -> None:
        api = HTTPSConnection(self._host, int(self._port), context=self._tls)

        def asked(path: str) -> HTTPResponse:
            api.request("GET", path, headers={"Authorization": self._token})
            return api.getresponse()

        def read(what: str, path: str) -> Object:
            path = f"/apis/{API_VERSION}/{path}"
            try:
                answer = asked(path)
            except RemoteDisconnected:  # the API server closes a connection idle for 90 s
                answer = asked(path)
            self.counts[f"{what} read: {answer.status}"] += 1
            found: Object = json.loads(answer.read())
            return found

        while True:
            claim = read("claims", self._claims.get())
            for device in claim["status"]["allocation"]["devices"]:
                read("devices", f"{GPU_DEVICES.plural}/{device['name']}")


def main() -> None:
    """Read the arguments and keep the watches open."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="of an administrator")
    parser.add_argument("--count", type=int, required=True, help="number of agents")
    options = parser.parse_args()
    connection = asyncio.run(login(options.kubeconfig))
    headers = asyncio.run(connection.credentials.headers())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    agents = SimulatedAgents(connection, headers["Authorization"], options.count)
    agents.start()
    print("ready", flush=True)
    threading.Thread(target=agents.follow, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(agents.counts), flush=True)


if __name__ == "__main__":
    main()
