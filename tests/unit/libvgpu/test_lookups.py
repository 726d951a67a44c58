"""The replay of runtime libraries' look-ups, with a library of our own and artificial answers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

_RUNTIME = """
#include <dlfcn.h>
typedef int (*look_up)(const char *, void **, int, unsigned long long, int *);
int cudaGetDeviceCount(int *count)
{
    void *out, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    look_up ask = (look_up)dlsym(driver, "cuGetProcAddress_v2");
    *count = 0;
    ask("cuMemAlloc", &out, 3020, 0, 0);
    ask("cuMemAlloc", &out, 3020, 0, 0);
    ask("cuGetErrorName", &out, 6000, 0, 0);
    ask("cuNoSuchThing", &out, 13000, 1, 0);
    return 500;
}
"""


@pytest.fixture
def runtime(tmp_path: Path, native: Path, replay: ModuleType) -> Path:
    """A runtime library that looks up three names, one of them twice."""
    source, library = tmp_path / "runtime.c", tmp_path / "libcudart.so"
    source.write_text(_RUNTIME)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    (tmp_path / "machine").write_text(replay.MACHINE)
    return library


def test_each_look_up_is_made_again_under_the_library(
    replay: ModuleType, runtime: Path, tmp_path: Path
) -> None:
    answer, calls = replay.asked(tmp_path, runtime)
    assert answer == 500
    assert [(call.name, call.version, call.flags) for call in calls] == [
        ("cuMemAlloc", 3020, 0),
        ("cuGetErrorName", 6000, 0),
        ("cuNoSuchThing", 13000, 1),
    ]
    answers = replay.resolved(tmp_path, calls)
    assert answers == [
        ("libvgpu.so", "cuMemAlloc_v2"),
        ("libcuda.so.1", "cuGetErrorName"),
        None,
    ]
    verdict = replay.judged(calls, answers, replay.coverage.rows())
    assert verdict == {
        "classes": {"CHARGE": 1, "PASS": 1},
        "not_found": ["cuNoSuchThing"],
        "wrong": [],
    }


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (("libcuda.so.1", "cuMemAlloc_v2"), "cuMemAlloc 3020 is CHARGE and leads to libcuda.so.1"),
        (("libcuda.so.1", "cuNew"), "cuMemAlloc 3020 leads to cuNew, which has no row"),
    ],
)
def test_a_look_up_that_passes_by_the_library_is_wrong(
    replay: ModuleType, answer: tuple[str, str], sentence: str
) -> None:
    rows = replay.coverage.table("VGPU_HOOK(CHARGE, cuda, cuMemAlloc_v2, cuMemAlloc, 3020, 0, x)")
    call = replay.LookUp("cuMemAlloc", 3020, 0)
    assert replay.judged([call], [answer], rows)["wrong"] == [sentence]
