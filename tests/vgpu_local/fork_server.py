"""Starts our programs as forks of a process that has already loaded their modules.

A program takes a second of processor time to import its modules, and a quarter of a second to tear
them down at its end. Tests that start hundreds of programs would mostly do that. So a process with
a single thread imports the modules once, and every program is a fork of it. Each is a real process
in its own session, and differs from an executed program only in the way its modules were loaded.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from vgpu_local.started import Started

_MODULES = (
    "vgpu_operator",
    "vgpu_operator.admission",
    "vgpu_operator.web",
    "vgpu_operator.cli",
    "vgpu_nodeagent",
)
_LAZY = ("vgpu_operator.cli.cluster_commands", "vgpu_operator.cli.live")
"""Modules that a program imports only when it needs them."""
_FORK_S = 60.0


class Child:
    """A process that the fork server started, with the methods of `Popen` that `Daemon` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It is still running.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self._code is not None
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        with self._lock:
            if self._code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def ended(self, code: int) -> None:
        """Record that it has ended with this exit code."""
        with self._lock:
            self._code = code
        self._ended.set()


class ForkServer(Started):
    """A context manager that forks programs for one or more clusters, and ends them on exit.

    Args:
        environment: Variables for the loader of shared libraries, which reads them only at start.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._children: dict[int, Child] = {}
        self._forked: list[Child] = []
        self._changed = threading.Condition()
        self._one_at_a_time = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start to load the modules, and return at once."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = ours
        self._reader = threading.Thread(target=self._read, name="fork_server", daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """End all processes; may be called again."""
        if self._process is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._process.wait()
            self._reader.join()
            self._socket.close()
            self._process = None

    def spawn(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        errors: Path | None = None,
    ) -> Child:
        """Start `python -m MODULE ARGUMENTS` and append its output to files; see `Spawn`.

        Raises:
            RuntimeError: It could not be forked.
        """
        _, flag, module, *arguments = command
        assert flag == "-m", command
        request = {
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "outputs": [str(log), str(errors or log)],
        }
        with self._one_at_a_time, self._changed:  # an answer does not show whose it is
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            if not self._changed.wait_for(lambda: self._forked, _FORK_S):
                raise RuntimeError(
                    f"{module} was not forked: the fork server has ended, or is stuck"
                )
            return self._forked.pop()

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                event = json.loads(line)
                with self._changed:
                    if "code" in event:
                        self._children.pop(event["pid"]).ended(event["code"])
                    else:
                        child = self._children[event["pid"]] = Child(event["pid"])
                        self._forked.append(child)
                        self._changed.notify_all()
        with self._changed:
            for child in self._children.values():
                child.ended(-signal.SIGKILL)  # the fork server did that before it ended


# Inside the fork server's process.


def main() -> None:
    """Fork the requested programs, report each end, and end all when the socket closes."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    modules = {name: importlib.import_module(f"{name}.__main__") for name in _MODULES}
    for name in _LAZY:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(alive, channel)
        if channel.fileno() in ready:
            if not (chunk := channel.recv(1 << 16)):
                break
            *requests, rest = (rest + chunk).split(b"\n")
            for request in requests:
                pid = _fork(json.loads(request), modules, [channel.fileno(), woken, wake])
                alive.add(pid)
                _send(channel, {"pid": pid})
    for pid in alive:
        os.killpg(pid, signal.SIGKILL)  # no other process reaps them, so they are there
        os.waitpid(pid, 0)


def _reap(alive: set[int], channel: socket.socket) -> None:
    for pid in list(alive):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            alive.discard(pid)
            _send(channel, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(channel: socket.socket, what: Mapping[str, int]) -> None:
    with contextlib.suppress(OSError):  # the socket is closed: `recv` will show that
        channel.sendall(json.dumps(what).encode() + b"\n")


def _fork(request: dict[str, Any], modules: Mapping[str, ModuleType], fds: Sequence[int]) -> int:
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(done)
        _run(request, modules[request["module"]], [*fds, ready])
    os.close(done)
    os.read(ready, 1)  # ends when it leads its own session, as its group may be killed from now on
    os.close(ready)
    return pid


def _run(request: dict[str, Any], module: ModuleType, fds: Sequence[int]) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in fds:
            os.close(fd)
        for number, path in enumerate(request["outputs"], start=1):
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # the fork server's may be another
        sys.argv = [str(module.__file__), *request["arguments"]]
        code = _code_of(module.main)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _code_of(run: Callable[[], object]) -> int:
    """Return the exit code that the interpreter would end with."""
    try:
        wanted = run()
    except SystemExit as end:
        wanted = end.code
    if wanted is None or isinstance(wanted, int):
        return wanted or 0
    print(wanted, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
