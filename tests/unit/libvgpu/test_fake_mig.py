"""Instances of a simulated device in MIG mode, made and removed by the real pynvml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Stage

DEVICE = "GPU-6f3c1c2e-0000-4000-8000-000000000000"
OTHER = "GPU-6f3c1c2e-0000-4000-8000-000000000001"
MACHINE = f"""
card uuid={DEVICE} model="NVIDIA A100-SXM4-40GB" memory_mib=40960 mig=on
card uuid={OTHER} model="NVIDIA A100-SXM4-40GB" memory_mib=40960 mig=off
"""
PRELUDE = """
import ctypes, os, subprocess, sys
import pynvml as n
n.nvmlInit()
card, other = (n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount()))
def failure(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0
def places(id):
    count, room = ctypes.c_uint(), (n.c_nvmlGpuInstancePlacement_t * 8)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(card, id, None, ctypes.byref(count))
    n.nvmlDeviceGetGpuInstancePossiblePlacements(card, id, room, ctypes.byref(count))
    return [(place.start, place.size) for place in room[: count.value]]
def make(id, start, size):
    place = n.c_nvmlGpuInstancePlacement_t(start, size)
    return n.nvmlDeviceCreateGpuInstanceWithPlacement(card, id, ctypes.byref(place))
def instances(id):
    count, room = ctypes.c_uint(), (n.c_nvmlGpuInstance_t * 7)()
    n.nvmlDeviceGetGpuInstances(card, id, room, ctypes.byref(count))
    return list(room[: count.value])
def computes(gpu, id):
    count, room = ctypes.c_uint(), (n.c_nvmlComputeInstance_t * 7)()
    n.nvmlGpuInstanceGetComputeInstances(gpu, id, room, ctypes.byref(count))
    return list(room[: count.value])
"""
MAKE_TWO = (
    PRELUDE
    + """
first, second = make(19, 6, 1), make(9, 0, 4)
n.nvmlGpuInstanceCreateComputeInstance(first, 0)
n.nvmlGpuInstanceCreateComputeInstance(second, 2)
answer = [
    n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(card, i)) for i in range(2)
]
"""
)


@pytest.fixture
def cut(stage: Stage) -> Stage:
    """A machine with one device in MIG mode and one that could be."""
    stage.machine.write_text(MACHINE)
    return stage


def told(stage: Stage, program: str, **extra: str) -> Any:
    """Return the output of a program on this machine."""
    return stage.python(PRELUDE + program, extra=extra)


def test_a_device_tells_into_what_it_can_be_cut(cut: Stage) -> None:
    answer = told(
        cut,
        """
found = {}
for kind in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
    if failure(n.nvmlDeviceGetGpuInstanceProfileInfo, card, kind) == n.NVML_ERROR_NOT_SUPPORTED:
        continue
    info = n.nvmlDeviceGetGpuInstanceProfileInfo(card, kind)
    old = n.nvmlDeviceGetGpuInstanceProfileInfo(card, kind, version=1)
    by_id = n.nvmlDeviceGetGpuInstanceProfileInfoById(card, info.id)
    name = info.name if isinstance(info.name, str) else info.name.decode()
    assert (old.id, old.memorySizeMB) == (by_id.id, by_id.memorySizeMB)
    found[name] = [info.id, info.sliceCount, info.memorySizeMB, places(info.id)]
answer = found
""",
    )
    assert answer["MIG 1g.5gb"] == [19, 1, 4864, [[start, 1] for start in range(7)]]
    assert answer["MIG 3g.20gb"] == [9, 3, 20096, [[0, 4], [4, 4]]]
    assert answer["MIG 7g.40gb"] == [0, 7, 40320, [[0, 8]]]
    assert answer["MIG 1g.10gb"][3] == [[0, 2], [2, 2], [4, 2], [6, 2]]
    assert len(answer) == 7


def test_what_is_not_in_mig_mode_cannot_be_cut(cut: Stage) -> None:
    answer = told(
        cut,
        """
place = n.c_nvmlGpuInstancePlacement_t(0, 1)
answer = [
    failure(n.nvmlDeviceGetGpuInstanceProfileInfo, other, 0),
    failure(n.nvmlDeviceCreateGpuInstanceWithPlacement, other, 19, ctypes.byref(place)),
    failure(n.nvmlDeviceGetGpuInstanceRemainingCapacity, other, 19),
]
""",
    )
    assert answer == [3, 3, 3]


def test_an_instance_is_made_where_it_was_asked_for_and_other_processes_see_it(cut: Stage) -> None:
    uuids = cut.python(MAKE_TWO)
    assert len(set(uuids)) == 2
    assert all(uuid.startswith("MIG-") for uuid in uuids)
    answer = told(
        cut,
        f"""
(gpu,) = instances(9)
info = n.nvmlGpuInstanceGetInfo(gpu)
(compute,) = computes(gpu, 2)
mig = n.nvmlDeviceGetHandleByUUID({uuids[1]!r})
answer = {{
    "place": [info.placement.start, info.placement.size],
    "same": n.nvmlGpuInstanceGetInfo(n.nvmlDeviceGetGpuInstanceById(card, info.id)).profileId,
    "compute": n.nvmlComputeInstanceGetInfo_v2(compute).placement.size,
    "by_id": n.nvmlComputeInstanceGetInfo(n.nvmlGpuInstanceGetComputeInstanceById(gpu, 0)).id,
    "is_its_own": n.nvmlDeviceGetGpuInstanceId(mig) == info.id,
    "memory": n.nvmlDeviceGetMemoryInfo(mig).total >> 20,
    "left": [n.nvmlDeviceGetGpuInstanceRemainingCapacity(card, id) for id in (19, 9, 14, 0)],
    "of": n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)),
}}
""",
    )
    assert answer == {
        "place": [0, 4],
        "same": 9,
        "compute": 3,
        "by_id": 0,
        "is_its_own": True,
        "memory": 20096,
        "left": [2, 0, 1, 0],
        "of": DEVICE,
    }


def test_no_two_instances_lie_on_one_slice_and_a_place_must_be_one_of_the_profiles(
    cut: Stage,
) -> None:
    answer = told(
        cut,
        """
make(9, 4, 4)
answer = [
    failure(make, 19, 5, 1),
    failure(make, 14, 4, 2),
    failure(make, 9, 1, 4),
    failure(make, 9, 0, 2),
    failure(make, 77, 0, 1),
    failure(make, 5, 0, 4),
    failure(make, 20, 1, 1),
]
""",
    )
    assert answer == [23, 23, 2, 2, 2, 0, 23]


def test_a_profile_lies_anywhere_if_nobody_says_where_and_only_so_often(cut: Stage) -> None:
    answer = told(
        cut,
        """
made = [n.nvmlDeviceCreateGpuInstance(card, 20)]
starts = [n.nvmlGpuInstanceGetInfo(gpu).placement.start for gpu in made]
answer = [starts, failure(n.nvmlDeviceCreateGpuInstance, card, 20)]
""",
    )
    assert answer == [[0], 23]


def test_an_instance_is_in_use_while_it_has_a_compute_instance_or_a_process(cut: Stage) -> None:
    (uuid, _) = cut.python(MAKE_TWO)
    answer = told(
        cut,
        f"""
child = '''
import ctypes, sys
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("ready", flush=True)
sys.stdin.read()
'''
environment = dict(os.environ, NVIDIA_VISIBLE_DEVICES={uuid!r})
user = subprocess.Popen(
    [sys.executable, "-c", child], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
user.stdout.readline()
(gpu,) = instances(19)
(compute,) = computes(gpu, 0)
answer = [failure(n.nvmlGpuInstanceDestroy, gpu), failure(n.nvmlComputeInstanceDestroy, compute)]
user.kill()
user.wait()
answer += [failure(n.nvmlComputeInstanceDestroy, compute), failure(n.nvmlGpuInstanceDestroy, gpu)]
answer += [failure(n.nvmlGpuInstanceDestroy, gpu), len(instances(19)), len(instances(9))]
""",
    )
    assert answer == [19, 19, 0, 0, 2, 0, 1]


def test_an_instance_made_anew_in_the_same_place_has_another_uuid(cut: Stage) -> None:
    answer = told(
        cut,
        """
uuids = []
for _ in range(3):
    gpu = make(19, 3, 1)
    compute = n.nvmlGpuInstanceCreateComputeInstance(gpu, 0)
    uuids.append(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)))
    n.nvmlComputeInstanceDestroy(compute)
    n.nvmlGpuInstanceDestroy(gpu)
answer = [len(set(uuids)), failure(n.nvmlDeviceGetHandleByUUID, uuids[0])]
""",
    )
    assert answer == [3, 6]


def test_a_program_that_is_given_one_instance_sees_that_one_and_its_memory(cut: Stage) -> None:
    first, second = cut.python(MAKE_TWO)
    answer = cut.python(
        f"""
import ctypes
import pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
def failure(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
driver = ctypes.CDLL("libcuda.so.1")
context, count = ctypes.c_void_p(), ctypes.c_int()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert driver.cuInit(0) == 0
assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
answer = [
    n.nvmlDeviceGetCount(),
    n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)),
    failure(n.nvmlDeviceGetMigDeviceHandleByIndex, card, 1),
    failure(n.nvmlDeviceGetHandleByUUID, {first!r}),
    count.value,
    total.value >> 20,
]
""",
        extra={"NVIDIA_VISIBLE_DEVICES": second},
    )
    assert answer == [1, second, 6, 6, 1, 20096]


def test_a_device_in_mig_mode_without_instances_is_no_device_for_cuda(cut: Stage) -> None:
    answer = cut.python(
        """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
answer = [driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)), count.value]
"""
    )
    assert answer == [0, 0, 1]  # the other device


def test_a_machine_with_more_instances_than_room_is_a_mistake(stage: Stage) -> None:
    stage.machine.write_text(
        "".join(
            f"card uuid=GPU-6f3c1c2e-0000-4000-8000-{i:012x} "
            'model="NVIDIA H100 80GB HBM3" memory_mib=81559 mig=on\n'
            for i in range(9)
        )
    )
    answer = stage.python(
        "import pynvml\nanswer = None\ntry:\n    pynvml.nvmlInit()\n"
        "except pynvml.NVMLError as error:\n    answer = error.value\n"
    )
    assert answer == 9
