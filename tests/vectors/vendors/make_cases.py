"""Makes the questions that HAMi's own code answers, and vectors of questions and answers.

    PYTHONPATH=tests python tests/vectors/vendors/make_cases.py ask FOLDER HAMI
    PYTHONPATH=tests python tests/vectors/vendors/make_cases.py join FOLDER

`ask` writes FOLDER/cases.json, nodes and pods that ask for their devices, and the configuration
under which HAMi answers, FOLDER/device-config.yaml; both out of the shipped tables. The same seed
gives the same cases. HAMI is HAMi's source: of the pods of its examples names, annotations and
resources are asked about, too. `join` puts FOLDER/answers.json beside them into a file for each
kind of device: into this folder, or, where there are more cases than are kept here, into FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from vgpu_api.vendors import Capacity, Kind, Neighbours, kinds

SEED = 20_541
SEEDS = {"biren": 20_543, "kunlunxin-xpu": 20_543}
"""Where HAMi, among devices of equal rank, keeps to the order that an earlier container left, or
finds four devices of two halves of a server for linked that are not."""
CASES_A_KIND = 25
"""Kept here; CASES=1000 in the environment asks more."""
HAMI_EXAMPLES = "hami-examples"
EXAMPLES = Path(__file__).parents[3] / "examples" / "vendors"
SIZES = (16_384, 32_768, 65_536)
TYPES = {
    "hygon": ("DCU-K100_AI", "DCU-Z100", "DCU-Z100L"),
    "amd": ("AMD-Instinct-MI300X", "AMD-Instinct-MI308X"),
}
INSTANCE_TYPES = ("inf2.48xlarge", "trn1.32xlarge")
PARTS: tuple[tuple[int, dict[str, str]], ...] = (
    (6, {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"}),
    (6, {"1g.8gb": "0", "2g.16gb": "5", "3g.24gb": "9", "6g.48gb": "12"}),
    (7, {"1g.10gb": "19", "1g.20gb": "15", "2g.20gb": "14", "4g.40gb": "5", "7g.80gb": "0"}),
    (4, {"1G.8GB": "0", "2g.16gb": "", "4g.32gb.plain": "3", "full": "4"}),
    (8, {"1g.4gb": "0", "4g.16gb": "1", "8g.most": "2"}),
)
"""Types of the devices, and the largest size that is named."""
UNITS = 300
"""Compute units of a device where they are counted: a percent of it is a whole number of them."""
TIMED = ("seconds", "nanoseconds")
"""Rules of annotations that hold a time."""
_POLICIES = ("", "", "binpack", "spread", "mutex", "numa", "binpack,numa")


def device_config() -> dict[str, Any]:
    """Return HAMi's `device-config.yaml` with the names of the shipped tables."""
    chips = [kind for kind in kinds() if kind.name.startswith("iluvatar-")]
    return {
        "nvidia": {
            "resourceCountName": "nvidia.com/gpu",
            "resourceMemoryName": "nvidia.com/gpumem",
            "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
            "resourceCoreName": "nvidia.com/gpucores",
            "resourcePriorityName": "nvidia.com/priority",
            "defaultGPUNum": 1,
        },
        "hygon": {**_three(kind_named("hygon")), "memoryFactor": 1},
        "cambricon": _three(kind_named("cambricon")),
        "iluvatars": [
            {**_three(kind), "commonWord": kind.word, "chipName": kind.word} for kind in chips
        ],
        "mthreads": _three(kind_named("moore-threads")),
        "amd": _three(kind_named("amd")),
        "metax": {
            **_one(kind_named("metax-gpu")),
            "resourceVCountName": kind_named("metax-sgpu").count,
            "resourceVMemoryName": "metax-tech.com/vmemory",
            "resourceVCoreName": "metax-tech.com/vcore",
        },
        "enflame": {
            "resourceNameGCU": kind_named("enflame-gcu").count,
            "resourceNameDRSGCU": kind_named("enflame-drs").count,
            "resourceNameGCUMemory": "enflame.com/gcu-memory",
            "resourceNameGCUCore": "enflame.com/gcu-core",
        },
        "kunlun": {
            **_one(kind_named("kunlunxin-xpu")),
            "resourceVCountName": kind_named("kunlunxin-vxpu").count,
            "resourceVMemoryName": "kunlunxin.com/vxpu-memory",
        },
        "awsneuron": {
            **_one(kind_named("aws-neuron")),
            "resourceCoreName": "aws.amazon.com/neuroncore",
        },
        "vastai": _one(kind_named("vastai")),
        "biren": _one(kind_named("biren")),
        "vnpus": {"configs": [_ascend(kind) for kind in kinds() if kind.word.startswith("Ascend")]},
    }


def _ascend(kind: Kind) -> dict[str, Any]:
    assert kind.memory is not None
    sizes = kind.memory.sizes
    assert sizes is not None
    parts = [{"name": part.name, "memory": part.memory_mib} for part in sizes.parts]
    return {
        "commonWord": kind.word,
        "chipName": kind.word,
        "resourceName": kind.count,
        "resourceMemoryName": kind.memory.resource,
        "resourceCoreName": kind.unsupported.resources[0],
        "memoryAllocatable": sizes.whole_mib,
        "memoryCapacity": sizes.most_mib,
        "templates": parts,
        "superPod": kind.whole_modules,
    }


def kind_named(name: str) -> Kind:
    """Return a shipped kind."""
    return next(kind for kind in kinds() if kind.name == name)


def _one(kind: Kind) -> dict[str, Any]:
    return {"resourceCountName": kind.count}


def _three(kind: Kind) -> dict[str, Any]:
    assert kind.memory is not None
    assert kind.cores is not None
    return {
        "resourceCountName": kind.count,
        "resourceMemoryName": kind.memory.resource,
        "resourceCoreName": kind.cores.resource,
    }


def cases() -> Iterator[dict[str, Any]]:
    """Yield for each kind random nodes, each with a sequence of random pods."""
    for kind in kinds():
        chance = random.Random(f"{SEEDS.get(kind.name, SEED)} {kind.name}")
        for number in range(int(os.environ.get("CASES", CASES_A_KIND))):
            of_kind = _node_in_parts if kind.in_parts else _node
            node = of_kind(kind, f"node-{number}", chance, is_mixed=number % 2 == 0)
            pods = [_pod(kind, at, chance) for at in range(chance.randint(2, 7))]
            yield {"name": f"{kind.name}-{number}", "node": node, "pods": pods}
    yield from examples()


def examples() -> Iterator[dict[str, Any]]:
    """Yield the pods of `examples/vendors`, each on a node with four devices of its kind."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for pod in yaml.safe_load_all(path.read_text()):
            pod["metadata"] |= {"namespace": "default", "uid": "uid-of-example"}
            asked = pod["spec"]["containers"][0]["resources"]["limits"]
            kind = next(kind for kind in kinds() if not asked.keys().isdisjoint(kind.requested_by))
            name = pod["metadata"]["name"].replace("-", "_")
            yield {"name": f"{kind.name}-{name}", "node": _plain_node(kind), "pods": [pod]}


def examples_of_hami(source: Path) -> Iterator[dict[str, Any]]:
    """Yield the pods of HAMi's examples, each on a node with four devices of the kind it needs."""
    for path in sorted((source / "examples").rglob("*.yaml")):
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
        for number, document in enumerate(documents):
            if document["kind"] == "PersistentVolumeClaim":
                continue
            pod = document if document["kind"] == "Pod" else document["spec"]["template"]
            asked = set(pod["spec"]["containers"][0]["resources"]["limits"])
            kind = next((each for each in kinds() if asked.intersection(each.requested_by)), None)
            yield {
                "name": f"{HAMI_EXAMPLES} {path.relative_to(source / 'examples')} {number}",
                "node": _nvidia_node() if kind is None else _plain_node(kind),
                "pods": [_asking_part(pod, document["metadata"]["name"])],
            }


def _asking_part(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a pod that hold its requests."""
    metadata = {"name": name, "namespace": "default", "uid": "uid-of-example"}
    metadata |= {"annotations": (pod.get("metadata") or {}).get("annotations", {})}
    containers = [
        {
            "name": each["name"],
            "resources": {
                what: {key: str(amount) for key, amount in amounts.items() if "/" in key}
                for what, amounts in each["resources"].items()
            },
        }
        for each in pod["spec"]["containers"]
    ]
    return {"metadata": metadata, "spec": {"containers": containers}}


NVIDIA_REGISTER = "hami.io/node-nvidia-register"
_NVIDIA_IDS = ("67d", "67e", "680", "681")
"""Ends of the UUIDs that HAMi's examples choose, and of two others."""


def _nvidia_node() -> dict[str, Any]:
    models = ("Tesla V100-PCIE-32GB", "Tesla V100-PCIE-32GB", "A100-PCIE-40GB", "A100-PCIE-40GB")
    devices = [
        {
            "id": f"GPU-03f69c50-207a-2038-9b45-23cac89cb{end}",
            "index": index,
            "count": 10,
            "devmem": SIZES[1],
            "devcore": 100,
            "type": f"NVIDIA-{model}",
            "numa": index // 2,
            "mode": "hami-core",
            "health": True,
        }
        for index, (end, model) in enumerate(zip(_NVIDIA_IDS, models, strict=True))
    ]
    return {
        "metadata": {"name": "node", "annotations": {NVIDIA_REGISTER: json.dumps(devices)}},
        "status": {"allocatable": {"nvidia.com/gpu": "40"}},
    }


def _plain_node(kind: Kind) -> dict[str, Any]:
    if kind.in_parts:
        largest, profiles = PARTS[1]
        return _in_parts(kind, "node", profiles, [largest] * 4)
    if kind.register_.capacity is not None:
        return _capacity(kind, kind.register_.capacity, "node", 4, SIZES[-1])
    size = SIZES[1]
    if kind.memory is not None and kind.memory.sizes is not None:
        size = kind.memory.sizes.whole_mib
    types = TYPES.get(kind.name, (kind.word,))
    devices = [
        {
            "id": f"{kind.word}-node-{index}",
            "index": index,
            "count": 4,
            "devmem": size,
            "devcore": _cores(kind),
            "type": types[index % len(types)],
            "health": True,
            "numa": 0,
        }
        for index in range(4)
    ]
    return {
        "metadata": {"name": "node", "annotations": REGISTERS[kind.register_.form](kind, devices)},
        "status": {"allocatable": {kind.count: "16"}},
    }


def _node(kind: Kind, name: str, chance: random.Random, *, is_mixed: bool) -> dict[str, Any]:
    """Return a node whose devices are of one model, or of mixed sizes under the kind's plain word.

    HAMi v2.10.0 leaves the request out of a device's score where the type is not the plain word
    (its issue 2870): then only devices of one size are ordered as documented.
    """
    count = chance.randint(1, 8)
    if kind.choice == "wings":  # what such servers have
        count = chance.choice((4, 8, 8, 8))
    if kind.register_.capacity is not None:
        node = _capacity(kind, kind.register_.capacity, name, count, chance.choice(SIZES))
        if (ring := kind.register_.capacity.ring) is not None:
            node["metadata"]["labels"] = {ring.label: chance.choice(INSTANCE_TYPES)}
        return node
    type_ = kind.word if is_mixed else chance.choice(TYPES.get(kind.name, (kind.word,)))
    size = chance.choice(SIZES)
    devices = [
        {
            "id": f"{kind.word}-{name}-{index}",
            "index": index,
            "count": chance.choice((1, 2, 4, 10)) if is_mixed else 4,
            "devmem": chance.choice(SIZES) if is_mixed else size,
            "devcore": _cores(kind),
            "type": type_,
            "numa": chance.choice((0, 0, 1)),
            "health": chance.random() < 0.9,
        }
        for index in range(count)
    ]
    if kind.memory is not None and kind.memory.sizes is not None:
        for device in devices:
            device["devmem"] = kind.memory.sizes.whole_mib
    if kind.choice == "wings":
        for device in devices:
            device |= {"numa": device["index"] // 4, "count": 4}
    if kind.register_.group is not None and chance.random() < 0.7:
        for device in devices:
            number = chance.choice((0, 0, 0, 1, 1))
            shared = f"AIC-{number}" if kind.register_.group_when else number
            device["custominfo"] = {kind.register_.group: shared, **kind.register_.group_when}
    if kind.register_.zone is not None and kind.neighbours is not None:
        for device in devices:
            device[kind.register_.zone] = chance.choice((0, 1, 1, 2, 2, 3))
            device["qosPolicy"] = chance.choice(("", *kind.neighbours.policies))
    return {
        "metadata": {"name": name, "annotations": REGISTERS[kind.register_.form](kind, devices)},
        "status": {"allocatable": {kind.count: str(count * 10)}},
    }


def _node_in_parts(
    kind: Kind, name: str, chance: random.Random, *, is_mixed: bool
) -> dict[str, Any]:
    """Return a node whose devices have as many slots as the largest part is large, or some more."""
    count = chance.randint(1, 8)
    largest, profiles = chance.choice(PARTS)
    capacities = [largest + is_mixed * chance.choice((0, 0, 1, 4)) for _ in range(count)]
    return _in_parts(kind, name, profiles, capacities)


def _in_parts(
    kind: Kind, name: str, profiles: dict[str, str], capacities: list[int]
) -> dict[str, Any]:
    """Return a node with devices in parts; every third one names neither index nor minor."""
    devices = [
        {"index": "", "capacity": str(capacity)}
        if index % 3 == 2
        else {"index": str(index), "minor": f" {index + 16} ", "capacity": capacity}
        for index, capacity in enumerate(capacities)
    ]
    register = {"devices": devices, "profiles": profiles}
    return {
        "metadata": {
            "name": name,
            "annotations": {str(kind.register_.annotation): json.dumps(register)},
        },
        "status": {"allocatable": {kind.count: str(sum(capacities))}},
    }


def _cores(kind: Kind) -> int:
    return UNITS if kind.cores is not None and kind.cores.units else 100


def _capacity(kind: Kind, by: Capacity, name: str, count: int, memory_mib: int) -> dict[str, Any]:
    unit_mib = 1 if kind.memory is None else kind.memory.unit_mib
    amounts = {by.resource: str(count * by.each)}
    if by.memory is not None:
        amounts[by.memory] = str(count * memory_mib // unit_mib)
    if by.cores is not None and kind.numbered_cores is not None:
        amounts[by.cores] = str(count * kind.numbered_cores.each)
    return {"metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts}}


def _fields(kind: Kind, devices: list[dict[str, Any]]) -> dict[str, str]:
    keys = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index")
    rows = [
        ",".join(str(device[key]).lower() if key == "health" else str(device[key]) for key in keys)
        for device in devices
    ]
    return {str(kind.register_.annotation): "".join(f"{row},hami-core:" for row in rows)}


def _json(kind: Kind, devices: list[dict[str, Any]]) -> dict[str, str]:
    keys = kind.register_.keys
    named = [
        {keys.get(key, key): value for key, value in device.items() if keys.get(key, key)}
        for device in devices
    ]
    return {str(kind.register_.annotation): json.dumps(named)}


REGISTERS = {"fields": _fields, "json": _json}


def _pod(kind: Kind, number: int, chance: random.Random) -> dict[str, Any]:
    by_cores = kind.numbered_cores is not None and chance.random() < 0.7
    containers = [
        _container(kind, f"c{at}", chance, by_cores=by_cores)
        for at in range(chance.choice((1, 1, 1, 2)))
    ]
    if chance.random() < 0.1:
        containers.insert(chance.randint(0, 1), {"name": "side", "resources": {}})
    spec: dict[str, Any] = {"containers": containers}
    if chance.random() < 0.15:
        spec["initContainers"] = [_container(kind, "init", chance, by_cores=by_cores)]
    metadata = {
        "name": f"pod-{number}",
        "namespace": "default",
        "uid": f"00000000-0000-0000-0000-{number:012}",
        "annotations": _annotations(kind, chance),
    }
    if kind.neighbours is not None:
        metadata["annotations"] |= _about_neighbours(kind.neighbours, spec, chance)
    return {"metadata": metadata, "spec": spec}


def _about_neighbours(
    of: Neighbours, spec: dict[str, Any], chance: random.Random
) -> dict[str, str]:
    """Return the class and the policy of a pod; one with a class has one container.

    HAMi takes a device that an earlier container of the pod has for one of no class.
    """
    said: dict[str, str] = {}
    if chance.random() < 0.6:
        said[of.app_class] = chance.choice((*of.classes, *of.classes, *of.classes, "both"))
        spec.pop("initContainers", None)
        spec["containers"] = [each for each in spec["containers"] if each["resources"]][:1]
    if chance.random() < 0.5:
        said[of.qos_policy] = chance.choice((*of.policies, *of.policies, "none"))
    return said


def _annotations(kind: Kind, chance: random.Random) -> dict[str, str]:
    said: dict[str, str] = {}
    chosen = kind.selection
    if (policy := chance.choice(_POLICIES)) != "":
        said["hami.io/gpu-scheduler-policy"] = policy
    if chosen.use_types and chance.random() < 0.15:
        said[chosen.use_types] = chance.choice(TYPES[kind.name]).lower()
    if chosen.exclude_types and chance.random() < 0.15:
        said[chosen.exclude_types] = chance.choice(TYPES[kind.name])
    if chosen.exclude_ids and chance.random() < 0.1:
        node = f"node-{chance.randint(0, 9)}"
        own = f"{node}-enflame-drs-0" if kind.in_parts else f"{kind.word}-{node}-0"
        said[chosen.exclude_ids] = f"none-such, {own}"
    return said


def _container(
    kind: Kind, name: str, chance: random.Random, *, by_cores: bool = False
) -> dict[str, Any]:
    if by_cores and kind.numbered_cores is not None:
        cores = {kind.numbered_cores.resource: str(chance.choice((1, 1, 1, 1, 2, 3, 4, 8)))}
        return {"name": name, "resources": {"limits": cores}}
    if kind.in_parts:
        return {"name": name, "resources": {"limits": _part(kind, chance)}}
    counts = (1, 1, 1, 2, 4, 8, 3) if kind.choice == "wings" else (1, 1, 1, 2, 3)
    limits: dict[str, str] = {kind.count: str(chance.choice(counts))}
    if kind.memory is not None and chance.random() < 0.8:
        mib = chance.choice((0, 1000, 2000, 4096, 8000, 16_384, 20_000, 40_000, 70_000))
        sizes = kind.memory.sizes
        if sizes is not None and not sizes.several and limits[kind.count] != "1":
            whole = sizes.whole_mib
            mib = chance.choice((whole if kind.whole_modules else 8000, 70_000, *[whole] * 4))
        units = mib // kind.memory.unit_mib
        if kind.memory.amounts:
            units = chance.choice((*kind.memory.amounts, 5))
        limits[kind.memory.resource] = str(units)
    if kind.cores is not None and chance.random() < 0.7:
        most = 100 if kind.whole is None else kind.whole.cores
        percent = chance.choice((0, 10, 30, 50, 60, 100, 120))
        percent = percent if kind.cores.more_is_all else min(percent, 100)
        limits[kind.cores.resource] = str(percent * most // 100)
    return {"name": name, "resources": {"limits": limits}}


def _part(kind: Kind, chance: random.Random) -> dict[str, str]:
    """Return the limits for a part: its size, its amounts, or both (then the size counts)."""
    assert kind.memory is not None
    assert kind.cores is not None
    limits: dict[str, str] = {}
    if chance.random() < 0.5:
        limits[kind.count] = str(chance.choice((1, 1, 1, 2, 2, 3, 4, 5, 6, 7)))
    if not limits or chance.random() < 0.1:
        memory = (1, 4, 8, 10, 16, 20, 24, 40, 50, 90, 170, 1000, 8192, 16_000, 20_480, 24_576)
        written = {
            kind.memory.resource: str(chance.choice((*memory, 49_152, 100_000))),
            kind.cores.resource: str(chance.choice((1, 10, 16, 17, 34, 40, 50, 60, 100, 120))),
        }
        if (left_out := chance.choice((None, None, *written))) is not None:
            del written[left_out]
        limits |= written
    if kind.count in limits and int(limits.get(kind.cores.resource, "1")) > 100:
        del limits[kind.cores.resource]
    return limits


def ask(folder: Path, source: Path) -> None:
    """Write the questions, and the configuration that HAMi answers them under."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = [*cases(), *examples_of_hami(source)]
    (folder / "cases.json").write_text(json.dumps(asked))
    (folder / "device-config.yaml").write_text(yaml.safe_dump(device_config()))


def join(folder: Path) -> None:
    """Write questions with their answers, a file for each kind, a line for each case."""
    answers = json.loads((folder / "answers.json").read_text())
    answer_of = {each["name"]: each["pods"] for each in answers}
    by_kind: dict[str, list[str]] = {}
    for case in json.loads((folder / "cases.json").read_text()):
        joined = {**case, "answers": [_timeless(each) for each in answer_of[case["name"]]]}
        line = json.dumps(joined, separators=(",", ":"), sort_keys=True)
        by_kind.setdefault(_file_of(case["name"]), []).append(line)
    into = folder if "CASES" in os.environ else Path(__file__).parent
    for name, lines in by_kind.items():
        (into / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _file_of(case: str) -> str:
    is_hamis = case.startswith(HAMI_EXAMPLES)
    return HAMI_EXAMPLES if is_hamis else case.rsplit("-", 1)[0]


def _timeless(answer: dict[str, Any]) -> dict[str, Any]:
    """Return it without annotations that hold the time of the recording."""
    if "annotations" not in answer:
        return answer
    timed = {
        key for kind in kinds() for key, made in kind.records.more.items() if made.rule in TIMED
    }
    kept = {key: value for key, value in answer["annotations"].items() if key not in timed}
    return {**answer, "annotations": kept}


if __name__ == "__main__":
    {"ask": ask, "join": join}[sys.argv[1]](*map(Path, sys.argv[2:]))
