"""Starts `kubectl vgpu` from its archive: finds the compiled package for this Python.

This file is read by whatever `python3` is, so it keeps to words that old ones know.
"""

import os
import subprocess
import sys
from typing import NoReturn

HERE = os.path.dirname(os.path.realpath(__file__))
PYTHON = "%d.%d" % sys.version_info[:2]


def _fail(message: str) -> NoReturn:
    sys.exit("kubectl vgpu: " + message)


def _home() -> str:
    """Return the folder for what is installed on demand."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(caches, "kubectl-vgpu", "@VERSION@", PYTHON)


def _install_numpy() -> NoReturn:
    """Install numpy, for the commands that place pods, and start again."""
    home = _home()
    sys.stderr.write("kubectl vgpu: installing numpy, which this command needs, into %s\n" % home)
    unfinished = "%s.%d" % (home, os.getpid())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += [
        "--root-user-action",
        "ignore",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--target",
        unfinished,
    ]
    command += ["--requirement", os.path.join(HERE, "numpy.txt")]
    if subprocess.call(command, stdout=sys.stderr) != 0:
        _fail("numpy could not be installed; install it for %s and try again" % sys.executable)
    try:
        os.rename(unfinished, home)
    except OSError:
        if not os.path.isdir(home):  # else another call was faster
            raise
    again = [sys.executable, "-IS", os.path.join(HERE, "main.py")]
    os.execv(sys.executable, again + sys.argv[1:])


def _run() -> int:
    native = os.path.join(HERE, "native", PYTHON)
    if not os.path.isdir(native):
        known = ", ".join(sorted(os.listdir(os.path.join(HERE, "native"))))
        _fail("Python %s is not supported; name one of %s in VGPU_PYTHON" % (PYTHON, known))
    sys.path[:0] = [os.path.join(HERE, "lib"), native, _home()]
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # do not search for any
    from vgpu_operator.cli.__main__ import main

    try:
        return main()
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        _install_numpy()


if __name__ == "__main__":
    sys.exit(_run())
