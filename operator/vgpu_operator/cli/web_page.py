"""`kubectl vgpu web`: open the web page of the cluster in a browser, logged in as the user.

kubectl forwards a port to the page, and a server on the loopback address passes requests on to it.
The address that is opened has a code that is exchanged for the user's token once, so that no token
is in an address or a history, and no other program of the machine gets it. The forwarded
connection is not verified again: it ends inside the pod that kubectl's own connection reached.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import ssl
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import parse_qs, urlsplit

from vgpu_api.names import OPERATOR_NAMESPACE
from vgpu_api.resources import Resource
from vgpu_client.api import Api
from vgpu_client.errors import NotFound
from vgpu_operator.cli.listing import CannotAnswer
from vgpu_operator.cli.printing import Printer

_NAME = "vgpu-web"
SERVICES = Resource("", "v1", "services", "Service", namespaced=True)
LOGIN = "/local/login"
"""Answers a code with a token."""
_FORWARDED = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ->")
_START_S = 15.0
_CHUNK = 1 << 16
_WITHOUT_BODY = (204, 304)
_OF_ONE_CONNECTION = frozenset(
    {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "accept-encoding"}
)
"""Headers that are not passed on."""


@dataclass(slots=True)
class OneTimeLogin:
    """A code that is worth a token, once.

    Attributes:
        token: The token; empty once it was given.
        code: The code.
    """

    token: str
    code: str
    _lock: Lock = field(default_factory=Lock)

    def exchange(self, code: str) -> str | None:
        """Return the token for the right code, the first time; else None."""
        with self._lock:
            if not self.token or not secrets.compare_digest(code.encode(), self.code.encode()):
                return None
            token, self.token = self.token, ""
            return token


async def check_installed(api: Api) -> None:
    """Check that the cluster has the page.

    Raises:
        CannotAnswer: It has not.
        ClientError: The API server is unreachable, or refuses to show the page's Service.
    """
    try:
        await api.get(SERVICES, _NAME, namespace=OPERATOR_NAMESPACE)
    except NotFound as error:
        raise CannotAnswer(
            "the web page is not installed: add manifests/components/web, or in the chart "
            "components.web"
        ) from error


async def show(
    token: str, flags: Sequence[str], printer: Printer, *, port: int, opens_browser: bool
) -> None:
    """Serve the page until interrupted.

    Args:
        token: The user's token.
        flags: kubectl's global flags.
        printer: Prints the address.
        port: The port to serve the page on; 0: any.
        opens_browser: Open the address in a browser.

    Raises:
        CannotAnswer: kubectl cannot forward a port to the page, or the port is in use.
    """
    login = OneTimeLogin(token, secrets.token_urlsafe(24))
    async with (
        forwarded(flags) as target,
        served(login, target, port=port) as address,
    ):
        url = f"{address}/#/login/{login.code}"
        printer.line(f"The page is at {url}")
        printer.line("This address logs you in once. Press Ctrl-C to stop.")
        if opens_browser and not webbrowser.open(url):
            printer.line("No browser was found; open the address yourself.")
        await asyncio.Event().wait()


@asynccontextmanager
async def forwarded(flags: Sequence[str]) -> AsyncIterator[str]:
    """Have kubectl forward a port to the page, and yield the address.

    Raises:
        CannotAnswer: kubectl is missing, or says why it cannot.
    """
    words = [
        "kubectl",
        *flags,
        "-n",
        OPERATOR_NAMESPACE,
        "port-forward",
        f"service/{_NAME}",
        ":443",
    ]
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise CannotAnswer("kubectl is not on the PATH") from None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        try:
            async with asyncio.timeout(_START_S):
                found = _FORWARDED.match(await process.stdout.readline())
                why = b"" if found else await process.stderr.read()
        except TimeoutError:
            raise CannotAnswer("kubectl port-forward does not answer") from None
        if found is None:
            lines = why.decode(errors="replace").strip().splitlines()
            raise CannotAnswer("; ".join(lines) or "kubectl port-forward ended")
        yield f"https://127.0.0.1:{found[1].decode()}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def served(login: OneTimeLogin, target: str, *, port: int) -> AsyncIterator[str]:
    """Serve the page on the loopback address, and yield the address.

    Raises:
        CannotAnswer: The port is in use.
    """
    try:
        server = _LocalPage(login, target, port)
    except OSError as error:
        raise CannotAnswer(f"port {port}: {error.strerror or error}") from error
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        await asyncio.to_thread(server.shutdown)
        thread.join()
        server.server_close()


class _LocalPage(ThreadingHTTPServer):
    """Answers each connection in a thread, which does not outlive the program."""

    daemon_threads = True
    block_on_close = False  # views never end

    def __init__(self, login: OneTimeLogin, target: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Browsing)
        self.login = login
        self.target = urlsplit(target)
        self.tls = ssl.create_default_context()
        self.tls.check_hostname = False
        self.tls.verify_mode = ssl.CERT_NONE

    def connection(self) -> HTTPConnection:
        """Return a new connection to the page."""
        address = (self.target.hostname or "", self.target.port)
        if self.target.scheme == "http":
            return HTTPConnection(*address, timeout=_START_S)
        return HTTPSConnection(*address, timeout=_START_S, context=self.tls)


class _Browsing(BaseHTTPRequestHandler):
    """A request of the browser."""

    protocol_version = "HTTP/1.1"
    server: _LocalPage

    def answer(self) -> None:
        """Exchange a code for the token, or pass the request on."""
        # A foreign site that resolves its name to this address sends that name.
        host, port = self.headers.get("Host", ""), self.server.server_port
        if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self._say(403, {"error": f"unknown host {host}"})
            return
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True  # no browser sends chunks
            self._say(411, {"error": "Content-Length: Required value"})
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        if self.command == "POST" and url.path == LOGIN:
            code = parse_qs(url.query).get("code", [""])[0]
            token = self.server.login.exchange(code)
            if token is None:
                self._say(403, {"error": "the address was used before"})
            else:
                self._say(200, {"token": token})
            return
        with closing(self.server.connection()) as connection:
            try:
                answer = self._ask(connection, body)
            except (OSError, HTTPException) as error:
                self._say(502, {"error": f"the page does not answer: {error}"})
                return
            self._pass_on(answer)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = answer  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None:
        """Print nothing: the terminal shows the address."""

    def _say(self, status: int, document: dict[str, str]) -> None:
        text = json.dumps(document).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _ask(self, connection: HTTPConnection, body: bytes) -> HTTPResponse:
        connection.putrequest(self.command, self.path, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _OF_ONE_CONNECTION:
                connection.putheader(name, value)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        connection.sock.settimeout(None)  # views never end
        return connection.getresponse()

    def _pass_on(self, answer: HTTPResponse) -> None:
        """Send the page's response to the browser as it arrives."""
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        has_body = self.command != "HEAD" and answer.status not in _WITHOUT_BODY
        if has_body:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if not has_body:
            return
        try:
            while chunk := answer.read1(_CHUNK):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, HTTPException):  # the browser or the page is gone
            self.close_connection = True
