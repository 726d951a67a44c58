"""`kubectl vgpu simulate`: files in, answers out, and one clear line about each mistake."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgpu_operator.cli import simulate
from vgpu_operator.cli.__main__ import main
from vgpu_operator.cli.listing import NotInstalled

STATE: dict[str, Any] = {
    "nodes": [
        {
            "name": "a",
            "labels": {"zone": "one"},
            "devices": [
                {"uuid": "GPU-a0", "model": "Tesla T4", "memoryMiB": 16384, "numa": 0},
                {
                    "uuid": "GPU-a1",
                    "model": "Tesla T4",
                    "memoryMiB": 16384,
                    "memoryUsedMiB": 8192,
                    "coresUsed": 50,
                    "slotsUsed": 1,
                    "numa": 1,
                },
            ],
        },
        {"name": "b", "devices": [{"uuid": "GPU-b0", "model": "A100", "memoryMiB": 40960}]},
    ]
}


def a_raw_pod(name: str = "pod", node_selector: dict[str, str] | None = None, **limits: Any):
    resources = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in limits.items()}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "annotations": {}},
        "spec": {
            "nodeSelector": node_selector or {},
            "containers": [{"name": "main", "image": "i", "resources": {"limits": resources}}],
        },
    }


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs simulate on documents; returns status, standard output and standard error."""

    def run(*arguments: str, **documents: Any) -> Callable[..., tuple[int, str, str]]:
        command = ["simulate", *arguments]
        for option, document in documents.items():
            path = tmp_path / f"{option}.json"
            lines = option in ("cases", "many") and isinstance(document, list)
            text = "\n".join(map(json.dumps, document)) if lines else json.dumps(document)
            path.write_text(document if isinstance(document, str) else text)
            command += [f"--{option}", str(path)]
        status = main(command)
        out, error = capsys.readouterr()
        return status, out, error

    return run


def simulated(run, *arguments: str, state: Any = None, pod: Any) -> dict[str, Any]:
    status, out, error = run(*arguments, "-o", "json", state=state or STATE, file=pod)
    assert (status, error) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_a_pod_goes_to_the_fuller_node_and_the_emptier_device_and_the_answer_shows_why(
    run: Callable[..., tuple[int, str, str]],
):
    answer = simulated(run, pod=a_raw_pod(gpu=1, gpumem=4096))
    assert answer == {
        "id": "pod",
        "node": "a",
        "requests": [
            {
                "container": "main",
                "phase": "App",
                "count": 1,
                "memoryMiB": 4096,
                "memoryPercent": None,
                "cores": 0,
                "vendor": "nvidia",
                "mode": "Any",
            }
        ],
        "devices": [{"container": "main", "uuid": "GPU-a0", "memoryMiB": 4096, "cores": 0}],
        "refused": None,
        "nodes": {
            "a": {
                "score": 10 * (1 / 20 + 50 / 200 + 8192 / 32768),
                "reasons": "",
                "order": ["GPU-a1", "GPU-a0"],
                "deviceScores": {"GPU-a0": 3.5, "GPU-a1": 14.5},
            },
            "b": {
                "score": 0.0,
                "reasons": "",
                "order": ["GPU-b0"],
                "deviceScores": {"GPU-b0": 2.0},
            },
        },
    }


def test_a_refusal_has_the_reasons_of_every_node(run: Callable[..., tuple[int, str, str]]):
    answer = simulated(run, pod=a_raw_pod(gpu=1, gpumem=99999))
    assert answer["node"] is None
    assert answer["refused"] == "3/3 CardInsufficientMemory"
    assert answer["nodes"]["a"]["reasons"] == "2/2 CardInsufficientMemory"


def test_a_pod_rules_nodes_out_by_its_selector(run: Callable[..., tuple[int, str, str]]):
    answer = simulated(run, pod=a_raw_pod(node_selector={"zone": "two"}, gpu=1, gpumem=1))
    assert answer["refused"] == "2/2 NodeSelectorMismatch"


def test_a_quota_of_the_state_is_kept(run: Callable[..., tuple[int, str, str]]):
    quotas = [{"namespace": "default", "hard": {"limits.nvidia.com/gpumem": 1000}}]
    answer = simulated(run, state={**STATE, "quotas": quotas}, pod=a_raw_pod(gpu=1, gpumem=2000))
    assert answer["refused"] == "3/3 ResourceQuotaNotFit"


def test_a_quota_of_the_state_counts_the_pods_of_its_scopes(
    run: Callable[..., tuple[int, str, str]],
):
    line = {"scopeName": "PriorityClass", "operator": "In", "values": ["batch"]}
    of_batch = {
        "namespace": "default",
        "hard": {"requests.nvidia.com/gpu": 0},
        "scopeSelector": {"matchExpressions": [line]},
    }
    state, pod = {**STATE, "quotas": [of_batch]}, a_raw_pod(gpu=1, gpumem=1000)
    assert simulated(run, state=state, pod=pod)["node"]
    pod["spec"]["priorityClassName"] = "batch"
    assert simulated(run, state=state, pod=pod)["refused"] == "3/3 ResourceQuotaNotFit"


def test_a_node_that_the_quota_alone_rules_out_says_so(run: Callable[..., tuple[int, str, str]]):
    """Half of its larger device is more than the namespace may take."""
    hard = {"limits.nvidia.com/gpumem": 10_000}
    state = {**STATE, "quotas": [{"namespace": "default", "hard": hard}]}
    answer = simulated(run, state=state, pod=a_raw_pod(gpu=1, gpumem_percentage=50))
    assert answer["node"] == "a"
    assert answer["nodes"]["b"]["reasons"] == "1/1 ResourceQuotaNotFit"


def test_the_claims_of_the_state_hold_their_devices(run: Callable[..., tuple[int, str, str]]):
    claim = {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"requests": [{"name": "main", "memory": "40Gi"}]},
        "status": {
            "allocation": {
                "nodeName": "b",
                "devices": [{"request": "main", "uuid": "GPU-b0", "memory": "40Gi", "cores": 0}],
            }
        },
    }
    answer = simulated(run, state={**STATE, "claims": [claim]}, pod=a_raw_pod(gpu=1, gpumem=4096))
    assert answer["node"] == "a"
    assert answer["nodes"]["b"]["reasons"] == "1/1 CardInsufficientMemory"


def test_pair_scores_decide_for_topology(run: Callable[..., tuple[int, str, str]]):
    devices = [{"uuid": f"g{index}", "memoryMiB": 100} for index in range(3)]
    pairs = [{"a": "g0", "b": "g2", "score": 150}, {"a": "g1", "b": "g2", "score": 20}]
    state = {"nodes": [{"name": "n", "devices": devices, "pairScores": pairs}]}
    pod = a_raw_pod(gpu=2, gpumem=10)
    pod["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    found = {device["uuid"] for device in simulated(run, state=state, pod=pod)["devices"]}
    assert found == {"g0", "g2"}


def test_a_claim_is_simulated_as_a_pod_is(run: Callable[..., tuple[int, str, str]]):
    claim = {
        "kind": "VGPUClaim",
        "metadata": {"name": "c"},
        "spec": {"requests": [{"name": "x", "memory": "1Gi", "selector": {"models": ["a100"]}}]},
    }
    assert simulated(run, pod=claim)["devices"][0]["uuid"] == "GPU-b0"


def test_a_pod_that_asks_for_no_gpu_is_told_so(run: Callable[..., tuple[int, str, str]]):
    assert simulated(run, pod=a_raw_pod())["refused"] == "the pod asks for no GPU"


def test_admission_completes_the_pod_before_it_is_placed(run: Callable[..., tuple[int, str, str]]):
    pod = a_raw_pod(gpumem="4Gi")
    pod["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpumem": "4Gi"}
    answer = simulated(run, "--admit", pod=pod)
    assert answer["devices"][0]["memoryMiB"] == 4096


def test_admission_is_judged_where_vgpu_is_not_installed(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
):
    async def not_installed(_: object) -> None:
        raise NotInstalled("the cluster does not serve gpudevices.vgpu.dev")

    monkeypatch.setattr(simulate, "_live_cluster", not_installed)
    status, out, err = run("--admit", file=a_raw_pod(gpu=1))
    assert (status, out.splitlines()[0]) == (0, "pod: refused: NoGPUNodes")
    assert "vgpu is not installed in this cluster, so only admission is judged" in err
    status, _, err = run("--admit", file=a_raw_pod(gpu=1, gpucores=150))
    assert status == 2
    assert "spec.containers[0].resources.limits[nvidia.com/gpucores]: Invalid value: 150" in err
    status, out, err = run(file=a_raw_pod(gpu=1))
    assert (status, out) == (2, "")
    assert "does not serve gpudevices" in err


def test_cases_are_answered_line_by_line_and_a_bad_pod_does_not_stop_the_others(
    run: Callable[..., tuple[int, str, str]],
):
    cases = [
        {"id": 1, "state": STATE, "pod": a_raw_pod(gpu=1, gpumem=4096)},
        {"id": "two", "state": STATE, "pod": a_raw_pod(gpu=1, gpumem="x")},
        {"id": 3, "state": STATE, "claim": {"spec": {"requests": [{"memory": "1Gi"}]}}},
    ]
    status, out, _ = run(cases=cases)
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [answer["id"] for answer in answers] == [1, "two", 3]
    assert [answer["node"] for answer in answers] == ["a", None, "a"]
    assert "nvidia.com/gpumem" in answers[1]["refused"]


def test_many_pods_hold_what_they_got_and_utilisation_is_reported(
    run: Callable[..., tuple[int, str, str]],
):
    pods = [a_raw_pod(f"p{number}", gpu=1, gpumem=16384) for number in range(4)]
    status, out, _ = run("-o", "json", state=STATE, many=pods)
    *answers, summary = (json.loads(line) for line in out.splitlines())
    assert status == 0
    assert [answer["node"] for answer in answers] == ["a", "b", "b", None]
    assert (summary["placed"], summary["refused"]) == (3, 1)
    used = 100 * (8192 + 3 * 16384) / (2 * 16384 + 40960)
    assert summary["utilisation"]["memory"] == round(used, 2)


def test_the_text_form_says_where_and_why(run: Callable[..., tuple[int, str, str]]):
    _, out, _ = run(state=STATE, file=a_raw_pod(gpu=1, gpumem=20000))
    first, *nodes = out.splitlines()
    assert first == "pod: b: GPU-b0 (20000 MiB, 0 % for main)"
    assert nodes[0].endswith(": 2/2 CardInsufficientMemory")
    assert nodes[1].endswith(": chosen")


def test_behind_the_gate_a_state_has_nothing_of_nodes_but_devices_and_one_line_names_what_is_asked(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    state = {**STATE, "config": {"scheduling": {"mode": "Gate"}}}
    pod = a_raw_pod(gpu=1, gpumem=20000)
    assert "notJudged" not in simulated(run, state=state, pod=pod)
    pod["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "500"
    pod["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]
    assert "notJudged" not in simulated(run, pod=pod)
    line = "cpu, host ports, volumes: not judged, because a state file does not describe them"
    assert simulated(run, state=state, pod=pod)["notJudged"] == line
    _, out, _ = run(state=state, file=pod)
    assert out.splitlines()[1] == line
    _, out, _ = run(state=state, many=[pod, pod])
    assert out.splitlines()[2:-1] == [line]


A_SPEC = {"requests": [{}]}


def wrong(change) -> dict[str, Any]:
    state = copy.deepcopy(STATE)
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda s: s["nodes"][0]["devices"][1].update(memoryMiB=-1), "nodes[0].devices[1].memory"),
        (lambda s: s["nodes"][0]["devices"][1].update(memoryMiB=1 << 60), "devices[1].memoryMiB"),
        (lambda s: s["nodes"][0]["devices"][0].update(cores="100"), "nodes[0].devices[0].cores"),
        (lambda s: s["nodes"][1]["devices"][0].update(uuid="GPU-a0"),
         "nodes[1].devices[0].uuid: Duplicate value: 'GPU-a0': first at nodes[0].devices[0].uuid"),
        (lambda s: s["nodes"][1].update(name="a"),
         "nodes[1].name: Duplicate value: 'a': first at nodes[0].name"),
        (lambda s: s.update(config={"scheduling": {"nodePolicy": "x"}}), "scheduling.nodePolicy"),
        (
            lambda s: s["nodes"][0].update(annotations={"hami.io/gpu-scheduler-policy": "best"}),
            "nodes[0].annotations[hami.io/gpu-scheduler-policy]",
        ),
        (lambda s: s.update(claims=[{"spec": {"requests": []}}]), "claims[0].spec.requests"),
        (lambda s: s.update(nods=[]), "nods"),
        (
            lambda s: s.update(
                quotas=[{"namespace": "x", "hard": {"limits.nvidia.com/gpumem": "many"}}]
            ),
            "quotas[0].hard[limits.nvidia.com/gpumem]: Invalid value: \"many\"",
        ),
        (
            lambda s: s.update(
                quotas=[{"namespace": "x", "hard": {"limits.nvidia.com/gpucores": -1}}]
            ),
            "quotas[0].hard[limits.nvidia.com/gpucores]: Invalid value: -1",
        ),
        (
            lambda s: s.update(claims=[{"metadata": {"name": "c"}, "spec": A_SPEC}] * 2),
            "claims[1]: claim default/c",
        ),
        (
            lambda s: s["nodes"][0].update(pairScores=[{"a": "GPU-a0", "b": "x", "score": 1}]),
            "nodes[0].pairScores[0]",
        ),
    ],
)  # fmt: skip
def test_a_state_that_is_wrong_is_named_with_its_place_in_one_line(
    run: Callable[..., tuple[int, str, str]], change, place
):
    status, out, error = run(state=wrong(change), file=a_raw_pod(gpu=1))
    assert (status, out) == (2, "")
    assert len(error.splitlines()) == 1
    assert "state.json" in error
    assert place in error


@pytest.mark.parametrize(
    "pod",
    [
        "",
        "a: b: c",
        "[1, 2]",
        '{"kind": "Service"}',
        a_raw_pod(gpu=-1),
        a_raw_pod(gpu=1, gpumem=10**30),
        a_raw_pod(gpu=1, gpumem_percentage="many"),
        {**a_raw_pod(gpu=1), "spec": []},
        {**a_raw_pod(gpu=1), "metadata": {"annotations": {"hami.io/gpu-scheduler-policy": "x"}}},
    ],
)
def test_a_pod_that_is_wrong_ends_with_status_2_and_one_line(
    run: Callable[..., tuple[int, str, str]], pod
):
    status, out, error = run(state=STATE, file=pod)
    assert (status, out) == (2, "")
    assert len(error.splitlines()) == 1
    assert "file.json" in error


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nodes": NaN}', "[" * 100_000])
def test_a_state_that_is_no_state_ends_with_status_2(
    run: Callable[..., tuple[int, str, str]], text
):
    status, _, error = run(state=text, file=a_raw_pod(gpu=1))
    assert status == 2
    assert len(error.splitlines()) == 1


def test_files_that_are_missing_and_options_that_do_not_go_together_are_named(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    assert main(["simulate", "--state", str(tmp_path / "none"), "-f", "x"]) == 2
    assert main(["simulate", "-f", "x"]) == 2


def test_a_line_of_cases_that_cannot_be_read_is_refused_by_itself(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    bad = copy.deepcopy(STATE)
    bad["nodes"][0]["pairScores"] = [{"a": "GPU-a0", "b": "GPU-a1", "score": -1}]
    case = {"state": STATE, "pod": a_raw_pod(gpu=1)}
    lines = [
        json.dumps({"id": "no-pod", "state": STATE}),
        json.dumps({**case, "id": "bad-state", "state": bad}),
        "{",
        json.dumps({"state": STATE}),
        json.dumps({**case, "id": 7}),
    ]
    file = tmp_path / "lines"
    file.write_text("\n".join(lines))
    status, out, error = run("--cases", str(file))
    assert (status, error) == (0, "")
    *refused, good = (json.loads(line) for line in out.splitlines())
    assert good["id"] == 7
    assert good["node"] is not None
    assert [found["id"] for found in refused] == [
        "no-pod",
        "bad-state",
        f"{file}:3",
        f"{file}:4",
    ]
    said = [found["refused"] for found in refused]
    assert said[0] == f"{file}:1: a case needs either a pod or a claim"
    assert "nodes[0].pairScores[0].score: Invalid value: -1: must be 0 or more" in said[1]
    assert all(found["devices"] == [] and found["node"] is None for found in refused)


MIG = {
    "profiles": [
        {
            "name": "1g.5gb",
            "memoryMiB": 4864,
            "cores": 14,
            "slices": 1,
            "placements": [{"start": start, "size": 1} for start in range(7)],
        },
        {
            "name": "3g.20gb",
            "memoryMiB": 19968,
            "cores": 42,
            "slices": 3,
            "placements": [{"start": 0, "size": 4}, {"start": 4, "size": 4}],
        },
    ]
}


def a_cut_state(**mig: Any) -> dict[str, Any]:
    device = {"uuid": "GPU-0", "memoryMiB": 40960, "mode": "MIG", "mig": {**MIG, **mig}}
    return {"nodes": [{"name": "a", "devices": [device]}]}


def test_a_device_in_mig_mode_is_cut_and_the_answer_says_where(
    run: Callable[..., tuple[int, str, str]],
):
    answer = simulated(run, state=a_cut_state(), pod=a_raw_pod(gpu=2, gpumem=4000))
    assert answer["devices"] == [
        {
            "container": "main",
            "uuid": "GPU-0",
            "memoryMiB": 4864,
            "cores": 14,
            "mig": {"profile": "1g.5gb", "start": start, "size": 1},
        }
        for start in (6, 5)
    ]


def test_a_profile_that_is_named_is_the_only_one_that_serves(
    run: Callable[..., tuple[int, str, str]],
):
    spec = {"requests": [{"mode": "MIG", "migProfile": "3g.20gb", "count": 2}]}
    claim = {"kind": "VGPUClaim", "metadata": {"name": "c"}, "spec": spec}
    answer = simulated(run, state=a_cut_state(), pod=claim)
    assert [found["mig"]["start"] for found in answer["devices"]] == [4, 0]
    assert answer["requests"][0]["migProfile"] == "3g.20gb"
    taken = a_cut_state(instances=[{"profile": "1g.5gb", "start": 6}])
    refused = simulated(run, state=taken, pod=claim)
    assert "CardMigTopologyInfeasible" in str(refused["refused"])


def test_instances_in_use_and_claims_keep_their_places(run: Callable[..., tuple[int, str, str]]):
    state = a_cut_state(instances=[{"profile": "1g.5gb", "start": 6}])
    answer = simulated(run, state=state, pod=a_raw_pod(gpu=1, gpumem=15000))
    assert answer["devices"][0]["mig"] == {"profile": "3g.20gb", "start": 0, "size": 4}
    device = {"uuid": "GPU-0", "memory": "19968Mi", "mig": {"profile": "3g.20gb", "size": 4}}
    state["claims"] = [
        {
            "kind": "VGPUClaim",
            "metadata": {"name": "c"},
            "spec": {"requests": [{}]},
            "status": {"allocation": {"nodeName": "a", "devices": [device]}},
        }
    ]
    answer = simulated(run, state=state, pod=a_raw_pod(gpu=1, gpumem=15000))
    assert answer["refused"] == "1/1 CardMigTopologyInfeasible"
    del device["mig"]  # its place is unknown
    answer = simulated(run, state=state, pod=a_raw_pod(gpu=1, gpumem=4000))
    assert answer["refused"] == "1/1 CardTimeSlicingExhausted"


def test_a_device_is_given_in_the_parts_that_the_state_has(
    run: Callable[..., tuple[int, str, str]],
):
    parts = [
        {"name": "3g.20gb", "size": 3, "memoryMiB": 20480, "cores": 50},
        {"name": "1g.6gb", "size": 1, "memoryMiB": 6144, "cores": 17},
    ]
    device = {"uuid": "GCU-0", "vendor": "enflame-drs", "memoryMiB": 40960, "parts": parts}
    state = {"nodes": [{"name": "a", "devices": [{**device, "slots": 6}]}]}
    pod = a_raw_pod()
    pod["spec"]["containers"][0]["resources"]["limits"] = {"enflame.com/drs-gcu": 3}
    answer = simulated(run, state=state, pod=pod)
    assert answer["devices"] == [
        {"container": "main", "uuid": "GCU-0", "memoryMiB": 20480, "cores": 50, "part": "3g.20gb"}
    ]
    assert answer["requests"][0]["partSize"] == 3
    assert "partMemory" not in answer["requests"][0]
    _, said, _ = run(state=state, file=pod)
    assert said.startswith("pod: a: GCU-0 (3g.20gb, 20480 MiB, 50 % for main)")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"enflame.com/gcu-memory": 30000}
    answer = simulated(run, state=state, pod=pod)
    assert answer["requests"][0]["partMemory"] == 30000
    assert answer["refused"] == "1/1 ModeNotFit"
    assert answer["nodes"]["a"]["order"] == ["GCU-0"]


def test_many_pods_are_cut_side_by_side(run: Callable[..., tuple[int, str, str]]):
    many = [a_raw_pod(f"p{n}", gpu=1, gpumem=15000) for n in range(3)]
    _, out, _ = run(state=a_cut_state(), many=many)
    assert out.splitlines()[:3] == [
        "p0: a: GPU-0 (3g.20gb at 4, 19968 MiB, 42 % for main)",
        "p1: a: GPU-0 (3g.20gb at 0, 19968 MiB, 42 % for main)",
        "p2: refused: 1/1 CardInsufficientMemory",
    ]


@pytest.mark.parametrize(
    ("mig", "place"),
    [
        ({"instances": [{"profile": "2g.10gb", "start": 0}]}, "mig.instances[0]"),
        ({"instances": [{"profile": "3g.20gb", "start": 2}]}, "mig.instances[0]"),
        ({"profiles": MIG["profiles"] * 2}, "mig.profiles"),
        ({"profiles": [{"name": "x", "memoryMiB": 1, "placements": [{"start": -1, "size": 1}]}]},
         "placements"),
        ({"profiles": [{"name": "x", "memoryMiB": 1, "placements": [{"start": 0, "size": 99}]}]},
         "placements"),
    ],
)  # fmt: skip
def test_a_geometry_that_cannot_be_is_told_with_its_place(
    run: Callable[..., tuple[int, str, str]], mig, place
):
    status, out, error = run(state=a_cut_state(**mig), file=a_raw_pod(gpu=1))
    assert (status, out) == (2, "")
    assert place in error
    assert error.count("\n") == 1
