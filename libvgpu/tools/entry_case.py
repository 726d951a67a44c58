"""Looks up names with cuGetProcAddress, in a separate process started by gpu_entry.py.

Reads a JSON list of [name, version, flags] from standard input. Prints a JSON object with `form`
(the variant of cuGetProcAddress), `cuda` (the driver's version) and `found`. Each entry of `found`
is null if the name was not found, else [file, exported name]; the exported name is null if the
file does not export that address.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any


class Info(ctypes.Structure):
    """Dl_info of dladdr."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def where(dladdr: Any, address: ctypes.c_void_p) -> list[str | None] | None:
    """Return the file of an address and the name under which it is exported, if it is."""
    info = Info()
    if not address.value or not dladdr(address, ctypes.byref(info)):
        return None
    exported = bool(info.symbol) and info.address == address.value
    return [os.path.basename(info.file.decode()), info.symbol.decode() if exported else None]


def main() -> None:
    """Answer every look-up by the newest form of cuGetProcAddress that the driver has."""
    driver = ctypes.CDLL("libcuda.so.1")
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    form = next(
        (name for name in ("cuGetProcAddress_v2", "cuGetProcAddress") if hasattr(driver, name)), ""
    )
    found = []
    for name, since, flags in json.load(sys.stdin) if form else ():
        out = ctypes.c_void_p()
        words = [name.encode(), ctypes.byref(out), int(since), ctypes.c_uint64(flags)]
        if form.endswith("_v2"):
            words.append(None)
        failed = getattr(driver, form)(*words)
        found.append(None if failed else where(dladdr, out))
    print(json.dumps({"form": form, "cuda": version.value, "found": found}))


main()
