"""Labels by which containers may use the agent's files on a node with SELinux.

Files below `/var/lib` have a type that the policy for containers (container-selinux) lets no
container open. Containers may read, map and execute files of type `container_ro_file_t`, and write
those of type `container_file_t`; the level s0 has no category, so it serves every pod. What the
agent makes later in a labelled folder inherits the folder's label. The agent itself may relabel:
its container is privileged, and runs as `spc_t`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

READ_ONLY = "container_ro_file_t"
WRITABLE = "container_file_t"
_ATTRIBUTE = "security.selinux"
_IN_STATE = (
    ("lib", READ_ONLY),
    ("lib/*", READ_ONLY),
    ("slots", READ_ONLY),
    ("slots/*", READ_ONLY),
    ("slots/*/limits", READ_ONLY),
    ("slots/*/usage", WRITABLE),
    ("slots/*/usage/region", WRITABLE),
)


def label_state(state: Path) -> None:
    """Label the folders whose files containers get, and the files that are already in them."""
    for folder in ("lib", "slots"):
        (state / folder).mkdir(exist_ok=True)
    for pattern, kind in _IN_STATE:
        for path in state.glob(pattern):
            if not label(path, kind):
                return


def has_label(path: Path) -> bool:
    """Return True if a file has a label: on a node with SELinux all have one."""
    try:
        os.getxattr(path, _ATTRIBUTE, follow_symlinks=False)
    except OSError:
        return False
    return True


def label(path: Path, kind: str) -> bool:
    """Give a file a type; return False if it has no labels or the policy does not know the type."""
    if not has_label(path):
        return False
    value = f"system_u:object_r:{kind}:s0\0".encode()
    try:
        # A container can put a link to a file of the host in place of its usage region.
        os.setxattr(path, _ATTRIBUTE, value, follow_symlinks=False)
    except OSError as error:
        # Without container-selinux the policy knows no such type, and may not confine containers.
        logger.warning("SELinux: cannot label %s as %s: %s", path, kind, error.strerror)
        return False
    return True
