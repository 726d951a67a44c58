"""`kubectl vgpu web`: open the web page of the cluster in a browser, logged in as the user.

kubectl forwards a port to the page, and a server on the loopback address passes requests on to it.
The address that is opened has a code that is exchanged for the user's token once, so that no token
is in an address or a history, and no other program of the machine gets it. The forwarded
connection is not verified again: it ends inside the pod that kubectl's own connection reached.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web

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

    def exchange(self, code: str) -> str | None:
        """Return the token for the right code, the first time; else None."""
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
        aiohttp.ClientSession(auto_decompress=False) as session,
        served(login, session, target, port=port) as address,
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
async def served(
    login: OneTimeLogin, session: aiohttp.ClientSession, target: str, *, port: int
) -> AsyncIterator[str]:
    """Serve the page on the loopback address, and yield the address.

    Raises:
        CannotAnswer: The port is in use.
    """

    async def exchange(request: web.Request) -> web.Response:
        token = login.exchange(request.query.get("code", ""))
        if token is None:
            return web.json_response({"error": "the address was used before"}, status=403)
        return web.json_response({"token": token}, headers={"Cache-Control": "no-store"})

    async def passed_on(request: web.Request) -> web.StreamResponse:
        # A foreign site that resolves its name to this address sends that name.
        if request.host not in (f"127.0.0.1:{bound}", f"localhost:{bound}"):
            return web.json_response({"error": f"unknown host {request.host}"}, status=403)
        if request.path == LOGIN and request.method == "POST":
            return await exchange(request)
        return await _pass_on(request, session, target)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", passed_on)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            raise CannotAnswer(f"port {port}: {error.strerror or error}") from error
        bound = runner.addresses[0][1]
        yield f"http://127.0.0.1:{bound}"
    finally:
        await runner.cleanup()


async def _pass_on(
    request: web.Request, session: aiohttp.ClientSession, target: str
) -> web.StreamResponse:
    """Return the page's response, as it comes: its views never end."""
    headers = [
        (name, value)
        for name, value in request.headers.items()
        if name.lower() not in _OF_ONE_CONNECTION
    ]
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_START_S)
    body = await request.read()
    try:
        async with session.request(
            request.method,
            target + request.path_qs,
            headers=headers,
            data=body or None,
            ssl=False,
            timeout=timeout,
            allow_redirects=False,
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _OF_ONE_CONNECTION:
                    response.headers.add(name, value)
            await response.prepare(request)
            async for chunk in answer.content.iter_chunked(_CHUNK):
                await response.write(chunk)
            return response
    except aiohttp.ClientError as error:
        return web.json_response({"error": f"the page does not answer: {error}"}, status=502)
