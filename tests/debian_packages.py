"""Programs from Debian that only some tests need, installed when such a test runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_INSTALL = Path(__file__).with_name("debian.sh")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def installed_program(name: str, package: str) -> str:
    """Return the path of a program; install its package if it is missing.

    Raises:
        subprocess.CalledProcessError: The package cannot be installed, so the test cannot run.
    """
    found = shutil.which(name, path=_PATH)
    if found is None:
        subprocess.run(["bash", str(_INSTALL), package], check=True)
        found = shutil.which(name, path=_PATH)
    assert found is not None, f"{package} has no {name}"
    return found
