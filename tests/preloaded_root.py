"""A root file system whose `/etc/ld.so.preload` names the library, in its own mount namespace.

It shows programs of this machine what a container of a limited pod sees; the real
`/etc/ld.so.preload` is never touched. It needs root, which CI has.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INSIDE = "/usr/local/vgpu"
# The namespace has `/usr/local` with one more folder and our `/etc` over the real ones; both vanish
# with it.
_ENTER = """
set -e
root=$1; shift
mount --make-rprivate /
for entry in /usr/local/*; do
    if [ -d "$entry" ] && [ ! -L "$entry" ]; then
        mkdir -p "$root$entry"
        mount --rbind "$entry" "$root$entry"
    else
        cp -a "$entry" "$root/usr/local/"
    fi
done
mount --rbind "$root/usr/local" /usr/local
mount --rbind "$root/etc" /etc
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that a program left for others to see."""

    status: int
    output: str
    errors: str


class PreloadedRoot:
    """A root for programs to run in, with or without the preloaded library.

    Args:
        folder: Where the copies lie.
        build: The built libraries.
        inside: Where programs find the library. It needs a page only where the agent puts it.
    """

    def __init__(self, folder: Path, build: Path, *, inside: str = INSIDE) -> None:
        self._folder = folder
        self._inside = inside
        (self.local / "usage").mkdir(parents=True)
        shutil.copyfile(build / "libvgpu.so", self.local / "libvgpu.so")
        (self.local / "libvgpu.so").chmod(0o755)

    @property
    def etc(self) -> Path:
        """Return the folder that is mounted as `/etc`."""
        return self._folder / "etc"

    @property
    def local(self) -> Path:
        """Return the folder that programs find at `inside`."""
        return self._folder / self._inside[1:]

    def run(
        self,
        command: Sequence[str],
        *,
        preloaded: bool,
        env: Mapping[str, str] | None = None,
        text: str = "",
    ) -> Outcome:
        """Run a program to its end.

        Args:
            command: The program and its arguments.
            preloaded: Whether the library is in `/etc/ld.so.preload`.
            env: All of its environment; None: two variables that programs want.
            text: What it reads.
        """
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"} if env is None else env
        if not self.etc.exists():  # only now, because a test may install a program first
            shutil.copytree("/etc", self.etc, symlinks=True)
        preload = self.etc / "ld.so.preload"
        preload.unlink(missing_ok=True)
        if preloaded:
            preload.write_text(f"{self._inside}/libvgpu.so\n")
            preload.chmod(0o644)
        cleared = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items())]
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", _ENTER, "sh", self._folder, *cleared, *command],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            umask=0o027,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)
