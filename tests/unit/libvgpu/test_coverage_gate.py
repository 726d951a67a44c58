"""The gate that compares the table of symbols with NVIDIA's headers, on snippets of headers."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SOURCES = Path(__file__).resolve().parents[3] / "libvgpu" / "src"

HEADER = """
#define CUDAAPI
#define cuMemAlloc   cuMemAlloc_v2
#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)
#define cuWait       __CUDA_API_PTSZ(cuWait)
#define cuOtherThing 12
/* CUresult CUDAAPI cuInAComment(void); */
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t n);
CUresult CUDAAPI
cuWait(CUstream hStream);
typedef CUresult (CUDAAPI *cuNotAFunction)(void);
"""


def rows(gate: ModuleType, text: str) -> tuple[object, ...]:
    found: tuple[object, ...] = gate.table(text)
    return found


def test_a_header_declares_its_prototypes_and_what_they_are_renamed_to(gate: ModuleType) -> None:
    assert gate.declared(HEADER) == {
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuMemcpyHtoD",
        "cuMemcpyHtoD_v2",
        "cuMemcpyHtoD_v2_ptds",
        "cuWait",
        "cuWait_ptsz",
    }


def test_nvml_declares_by_another_word(gate: ModuleType) -> None:
    header = """
    #define nvmlInit nvmlInit_v2
    #define nvmlOldType_t nvmlNewType_t
    nvmlReturn_t DECLDIR nvmlInit(void);
    const DECLDIR char* nvmlErrorString(nvmlReturn_t result);
    """
    assert gate.declared(header) == {"nvmlInit", "nvmlInit_v2", "nvmlErrorString"}


def test_an_unclassified_prototype_fails_and_is_named(gate: ModuleType) -> None:
    table = rows(gate, "VGPU_PLAIN(PASS, cuda, cuKnown)\n")
    wanted = {"cuda.h": frozenset({"cuKnown", "cuNew"})}
    assert gate.complaints(table, wanted, frozenset()) == ["cuNew of cuda.h has no row"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("VGPU_PLAIN(PASS, cuda, cuA)\nVGPU_PLAIN(PASS, cuda, cuA)\n", "cuA has 2 rows"),
        ("VGPU_PLAIN(PERHAPS, cuda, cuA)\n", "cuA has the unknown class PERHAPS"),
        ("VGPU_PLAIN(CHARGE, cuda, cuA)\n", "cuA is CHARGE and has no hook"),
        ("VGPU_PLAIN(OBSERVE, cuda, cuA)\n", "cuA is OBSERVE and has no hook"),
    ],
)
def test_a_table_that_contradicts_itself_fails(gate: ModuleType, text: str, sentence: str) -> None:
    assert gate.complaints(rows(gate, text), {}, frozenset()) == [sentence]


def test_a_hook_of_a_version_that_never_was_fails(gate: ModuleType) -> None:
    typedefs = "typedef CUresult (CUDAAPI *PFN_cuA_v3020)(int);\n"
    known = gate.versions([typedefs])
    assert known == {("cuA", 3020, False)}
    right = rows(gate, "VGPU_HOOK(CHARGE, cuda, cuA_v2, cuA, 3020, 0, CUresult, (int a))\n")
    wrong = rows(gate, "VGPU_GATE(DENY, cuda, cuA_v2, cuA, 3021, 0)\n")
    assert gate.complaints(right, {}, known) == []
    assert gate.complaints(wrong, {}, known) == ["cuA_v2: cuA has no variant of version 3021"]


def test_the_table_itself_is_read_whole_and_does_not_contradict_itself(gate: ModuleType) -> None:
    texts = [path.read_text() for path in sorted(SOURCES.glob("symbols*.def"))]
    table = gate.table(*texts)
    lines = sum(
        line.startswith(("VGPU_HOOK(", "VGPU_GATE(", "VGPU_PLAIN("))
        for text in texts
        for line in text.splitlines()
    )
    assert len(table) == lines
    assert gate.complaints(table, {}, frozenset()) == []


def test_fetched_headers_are_found_again_by_package_and_name(
    gate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "PACKAGES", ("some-headers==1.2",))
    with zipfile.ZipFile(tmp_path / "some_headers-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nvidia/include/cuda.h", HEADER)
        wheel.writestr("nvidia/include/other.h", "CUresult CUDAAPI cuOther(void);")
    gate.fetch(tmp_path)  # no download: it is there
    assert gate.headers(tmp_path) == {"some-headers 1.2 cuda.h": HEADER}


def test_the_versions_of_a_name_are_its_symbols_from_the_newest_back(gate: ModuleType) -> None:
    names = frozenset({"cuA", "cuA_v2", "cuA_v3", "cuB", "cuB_v2", "cuB_v2_ptds", "cuB_ptsz"})
    known = {("cuA", 3020, False), ("cuA", 12000, False), ("cuB", 2000, False)}
    known |= {("cuB", 3020, False), ("cuB", 7000, True), ("cuB", 11000, True)}
    rows = gate.entry_points(names, frozenset(known)).splitlines()
    assert [row for row in rows if "(cuA" in row or "(cuB" in row] == [
        "FAKE(cuA, 3020, cuA_v2)",
        "FAKE(cuA, 12000, cuA_v3)",
        "FAKE(cuB, 2000, cuB)",
        "FAKE(cuB, 3020, cuB_v2)",
        "FAKE_PT(cuB, 7000, cuB_ptsz)",
        "FAKE_PT(cuB, 11000, cuB_v2_ptds)",
    ]


def test_a_name_with_more_versions_than_symbols_is_refused(gate: ModuleType) -> None:
    known = frozenset({("cuA", 2000, False), ("cuA", 3020, False)})
    with pytest.raises(ValueError, match="cuA has versions"):
        gate.entry_points(frozenset({"cuA"}), known)
