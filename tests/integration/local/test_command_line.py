"""`kubectl vgpu` against a whole cluster, with its output in files and in a terminal.

Commands that need a terminal are executed; the others are forked, as the cluster's programs are.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from vgpu_api.names import AGENT_NAMESPACE
from vgpu_api.resources import GPU_DEVICES, PODS, VGPU_CLAIMS
from vgpu_local.agent_pod import agent_pod
from vgpu_local.cluster import LocalCluster
from vgpu_local.command import in_files, in_terminal, without_codes
from vgpu_local.kubectl import Kubectl
from vgpu_local.nodes import t4_node
from vgpu_local.options import ClusterOptions
from vgpu_local.steps import (
    a_claim,
    a_container,
    a_pod,
    claim,
    claim_name,
    create,
    delete_pod,
    empty,
    reason,
    running,
    until,
)

pytestmark = pytest.mark.timeout(240)

_COMPLETE = "from vgpu_operator.cli.completion import main; raise SystemExit(main())"
AGE = re.compile(r"(\d+[smhd])+")
HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192, "nvidia.com/gpucores": 50}
WHOLE = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100}


@pytest.fixture(scope="module")
def module_cluster(whole_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    """Nodes `one` and `two` with a T4 each, and pod `small`; all tests only read them."""
    nodes = [t4_node("one"), t4_node("two")]
    with whole_cluster(nodes, ClusterOptions(lease_s=4)) as cluster:
        yield cluster
        empty(cluster)


@pytest.fixture(scope="module")
def scene(module_cluster: LocalCluster) -> dict[str, str]:
    """`first` and `second` share a device, `third` has half the other; `waits` wants a whole one.

    Returns:
        The claims' names by pod; the node of the two, and the other, by `node` and `other`.
    """
    cluster, names = module_cluster, {}
    for name in ("first", "second"):
        create(cluster, a_pod(name, a_container(limits=HALF)))
        pod = running(cluster, name)
        names[name], names["node"] = claim_name(pod), pod["spec"]["nodeName"]
    create(cluster, a_pod("third", a_container(limits={**HALF, "nvidia.com/gpucores": 1})))
    other = running(cluster, "third")
    names["third"], names["other"] = claim_name(other), other["spec"]["nodeName"]
    create(cluster, a_pod("waits", a_container(limits={**WHOLE, "nvidia.com/gpumem": 9000})))
    waits = cluster.wait_for(PODS, "waits", lambda _: True)
    names["waits"] = claim_name(waits)
    claim(cluster, names["waits"], reason)
    for device in cluster.objects("gpudevices.vgpu.dev"):
        held = {names["node"]: 2, names["other"]: 1}[device["spec"]["nodeName"]]
        cluster.wait_for(
            GPU_DEVICES,
            device["metadata"]["name"],
            lambda shown, held=held: len(shown["status"].get("claims", ())) == held,
        )
    return names


@pytest.fixture
def cluster(module_cluster: LocalCluster, scene: dict[str, str]) -> LocalCluster:
    """The tests only read the cluster, so it is not reset between them."""
    return module_cluster


def run(
    cluster: LocalCluster, *arguments: str, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    return in_files(cluster.kubeconfig, *arguments, spawn=cluster.spawn, environment=environment)


def ask(cluster: LocalCluster, *arguments: str) -> str:
    done = run(cluster, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(cluster: LocalCluster, *arguments: str) -> str:
    """Return the one line that a command prints when it fails."""
    done = run(cluster, *arguments)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "Traceback" not in line
    return line


def rows(text: str) -> list[dict[str, str]]:
    """Return a table's rows by the header's names; no cell has two spaces in it."""
    header, *lines = text.splitlines()
    starts = [found.start() for found in re.finditer(r"\S+(?: \S+)*", header)]
    ends = [*starts[1:], None]
    return [
        {
            header[start:end].strip(): line[start:end].strip()
            for start, end in zip(starts, ends, strict=True)
        }
        for line in lines
    ]


# get.


def test_get_slices_shows_state_node_pod_and_why(cluster: LocalCluster, scene: dict[str, str]):
    shown = {row["NAME"]: row for row in rows(ask(cluster, "get", "slices"))}
    first, waits = shown[scene["first"]], shown[scene["waits"]]
    assert (first["NODE"], first["POD"]) == (scene["node"], "first")
    assert first["REQUEST"] == "1 × 8Gi, 50 %"
    assert (waits["STATE"], waits["NODE"]) == ("Pending", "-")
    assert waits["REASON"] == "CardInsufficientMemory"


def test_get_slices_of_all_namespaces_and_wide_names_devices(
    cluster: LocalCluster, scene: dict[str, str]
):
    shown = rows(ask(cluster, "get", "vgc", "-A", "-o", "wide"))
    assert {row["NAMESPACE"] for row in shown} == {"default"}
    (first,) = [row for row in shown if row["NAME"] == scene["first"]]
    assert first["DEVICES"].startswith("GPU-")
    assert len(shown) == 4


def test_get_devices_and_nodes_sum_what_is_given_away(cluster: LocalCluster, scene: dict[str, str]):
    devices = {row["NODE"]: row for row in rows(ask(cluster, "get", "devices", "-o", "wide"))}
    full = devices[scene["node"]]
    assert (full["MEMORY"], full["CORES"], full["STATE"]) == ("16Gi/16Gi", "100/100%", "Ready")
    assert set(full["SLICES"].split(",")) == {
        f"default/{scene['first']}", f"default/{scene['second']}"
    }  # fmt: skip
    nodes = {row["NAME"]: row for row in rows(ask(cluster, "get", "nodes"))}
    assert (nodes[scene["node"]]["SLICES"], nodes[scene["other"]]["SLICES"]) == ("2", "1")
    assert nodes[scene["other"]]["CORES"] == "1/100%"


def test_machine_formats_are_the_objects_of_the_api(cluster: LocalCluster, scene: dict[str, str]):
    name = scene["first"]
    one = json.loads(ask(cluster, "get", "slice", name, "-o", "json"))
    assert (one["kind"], one["metadata"]["name"]) == ("VGPUClaim", name)
    assert "managedFields" not in one["metadata"]
    listed = yaml.safe_load(ask(cluster, "get", "slices", "-o", "yaml"))
    assert listed["kind"] == "List"
    assert len(listed["items"]) == 4
    assert ask(cluster, "get", "slices", name, "-o", "name") == f"vgpuclaim.vgpu.dev/{name}\n"
    nodes = ask(cluster, "get", "nodes", "-o", "name").splitlines()
    assert nodes == ["node/one", "node/two"]


def test_a_jsonpath_is_kubectls(cluster: LocalCluster, scene: dict[str, str]):
    path = "jsonpath={.items[*].status.allocation.nodeName}"
    places = ask(cluster, "get", "slices", "-o", path).split()
    assert sorted(places) == sorted([scene["node"], scene["node"], scene["other"]])
    assert ask(cluster, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}") == "one two"


def test_get_selects_by_label(cluster: LocalCluster, scene: dict[str, str]):
    kubectl = Kubectl.find(cluster.kubeconfig)
    assert kubectl.run("label", "vgc", scene["third"], "team=a").returncode == 0
    chosen = ask(cluster, "get", "slices", "-l", "team=a", "-o", "name")
    assert chosen == f"vgpuclaim.vgpu.dev/{scene['third']}\n"
    assert ask(cluster, "get", "slices", "-l", "team=b") == "no slices found in namespace default\n"


def test_get_goes_on_with_what_changes_until_ctrl_c(cluster: LocalCluster):
    create(cluster, a_claim("seen", {"memory": "1Gi"}))
    status, text = in_terminal(
        cluster.kubeconfig, "get", "slices", "seen", "-w", until="WaitingForPod"
    )
    assert status == 130
    assert "seen" in without_codes(text)
    assert "Traceback" not in text
    cluster.run(cluster.api.delete(VGPU_CLAIMS, "seen", namespace="default"))


# explain.


def test_explain_says_the_conditions_words_and_what_would_have_to_end(
    cluster: LocalCluster, scene: dict[str, str]
):
    status = claim(cluster, scene["waits"], reason)["status"]
    (condition,) = [c for c in status["conditions"] if c["type"] == "Allocated"]
    text = ask(cluster, "explain", "waits")
    assert f"Reason: {condition['reason']}: {condition['message']}\n" in text
    said = json.loads(ask(cluster, "explain", "pod/waits", "-o", "json"))
    assert (said["reason"], said["message"]) == (condition["reason"], condition["message"])
    nodes = {node["name"]: node for node in said["nodes"]}
    full, other = nodes[scene["node"]], nodes[scene["other"]]
    assert full["verdict"] == "1/1 CardInsufficientMemory"
    assert full["end_first"] == sorted(f"default/{scene[name]}" for name in ("first", "second"))
    assert other["end_first"] == [f"default/{scene['third']}"]
    (device,) = other["devices"]
    assert (device["free_memory_mib"], device["free_cores"], device["free_slots"]) == (8192, 99, 9)
    assert device["held_by"] == [f"default/{scene['third']} (8Gi, 1 %)"]


def test_what_explain_says_must_end_is_enough_and_none_of_it_too_much(
    cluster: LocalCluster, scene: dict[str, str]
):
    """The node can take the pod once exactly the claims that explain names have ended."""
    said = json.loads(ask(cluster, "explain", f"claim/{scene['waits']}", "-o", "json"))
    for node in said["nodes"]:
        held = {word.split()[0] for device in node["devices"] for word in device["held_by"]}
        assert set(node["end_first"]) == held


def test_explain_says_why_a_pod_is_where_it_is(cluster: LocalCluster, scene: dict[str, str]):
    said = json.loads(ask(cluster, "explain", "third", "-o", "json"))
    assert (said["node"], said["asks"]) == (scene["other"], "1 × 8Gi, 1 %")
    verdicts = {node["name"]: node["verdict"] for node in said["nodes"]}
    assert verdicts[scene["other"]] == "holds it"
    assert "CardInsufficient" in verdicts[scene["node"]]
    assert "Node: " + scene["other"] in ask(cluster, "explain", "third")


# simulate, about the cluster as it is.


def test_simulate_answers_about_the_cluster_as_explain_does(
    cluster: LocalCluster, scene: dict[str, str], tmp_path: Path
):
    pod = a_pod("what-if", a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9000}))
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(pod))
    answer = json.loads(ask(cluster, "simulate", "-f", str(path), "--admit", "-o", "json"))
    assert answer["refused"].startswith("2/2 CardInsufficientMemory; ")
    small = a_pod("what-if", a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}))
    path.write_text(yaml.safe_dump(small))
    answer = json.loads(ask(cluster, "simulate", "-f", str(path), "--admit", "-o", "json"))
    assert answer["node"] == scene["other"]
    assert cluster.server.objects("pods", "default") != []
    names = {each["metadata"]["name"] for each in cluster.server.objects("pods", "default")}
    assert "what-if" not in names


def test_simulate_names_who_would_make_way_in_the_cluster_and_judges_a_group_as_a_whole(
    cluster: LocalCluster, scene: dict[str, str], tmp_path: Path
):
    path = tmp_path / "pods.yaml"
    late = a_pod("late", a_container(limits={**HALF, "nvidia.com/gpumem": 9000}))
    late["spec"]["priority"] = 1000
    path.write_text(yaml.safe_dump(late))
    answer = json.loads(ask(cluster, "simulate", "-f", str(path), "--admit", "-o", "json"))
    assert (answer["node"], answer["preemption"]["enabled"]) == (None, False)
    assert answer["preemption"]["nodes"] == [scene["other"]]
    (victim,) = answer["preemption"]["victims"]
    assert victim == {
        "pod": "default/third",
        "claim": f"default/{scene['third']}",
        "priority": 0,
        "protected": False,
    }
    message = f"Would preempt default/third (priority 0) on {scene['other']} if preemption"
    said = " ".join(ask(cluster, "simulate", "-f", str(path), "--admit").split())
    assert message in said
    small = a_container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096})
    members = [a_pod(f"g-{number}", small) for number in range(3)]
    for member in members:
        member["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
    }
    path.write_text(yaml.safe_dump_all([group, *members]))
    out = ask(cluster, "simulate", "-f", str(path), "--admit", "-o", "json")
    *answers, summary = map(json.loads, out.splitlines())
    assert (summary["placed"], summary["refused"]) == (0, 3)
    assert answers[0]["group"]["doNotFit"] == ["g-2"]


# Errors: one line, and never a traceback.


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("get", "slices", "none"), "no slice none in namespace default"),
        (("get", "devices", "none"), "no device none"),
        (("get", "nodes", "none"), "no node none"),
        (("explain", "none"), "no pod and no claim none in namespace default"),
        (("explain", "pod/none"), "no pod none in namespace default"),
        (("explain", "job/none"), "use NAME, pod/NAME or claim/NAME"),
        (("get", "slices", "--context", "none"), "none"),
    ],
)
def test_a_wrong_name_is_one_line(cluster: LocalCluster, arguments: tuple[str, ...], says: str):
    assert says in refused(cluster, *arguments)


VERBS = [
    ("get", "devices"),
    ("get", "slices", "-A"),
    ("explain", "first"),
    ("top",),
    ("drain", "one", "--yes"),
    ("doctor",),
    ("support-bundle",),
]


@pytest.mark.parametrize("arguments", VERBS, ids=lambda words: words[0])
def test_no_cluster_is_one_line(
    module_cluster: LocalCluster, tmp_path: Path, arguments: tuple[str, ...]
):
    nobody: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
    }
    away, none = tmp_path / "away", tmp_path / "none"
    away.write_text(yaml.safe_dump(nobody))
    for kubeconfig in (away, none):
        done = in_files(kubeconfig, *arguments, spawn=module_cluster.spawn)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("kubectl vgpu: ")


# In a terminal.


def test_a_terminal_gets_colours_and_bars_and_a_pipe_the_same_words_without(
    cluster: LocalCluster, scene: dict[str, str]
):
    plain = ask(cluster, "get", "devices")
    assert "\x1b" not in plain
    assert "█" not in plain
    status, coloured = in_terminal(cluster.kubeconfig, "get", "devices")
    assert status == 0
    assert "\x1b[" in coloured
    assert "█" in coloured
    words = without_codes(coloured).replace("█", " ").replace("░", " ").split()
    assert [w for w in words if not AGE.fullmatch(w)] == [
        w for w in plain.split() if not AGE.fullmatch(w)
    ]


def test_no_color_takes_the_colours_and_leaves_the_table(cluster: LocalCluster):
    status, text = in_terminal(cluster.kubeconfig, "get", "nodes", environment={"NO_COLOR": "1"})
    assert status == 0
    assert "\x1b[3" not in text
    assert "one" in text


# top: the CLI reaches agents by kubectl exec. Here they are processes, so a kubectl of ours runs
# the command there.

KUBECTL = """#!{python}
import json, subprocess, sys
arguments = [word for word in sys.argv[1:] if not word.startswith("--")]
states = {states!r}
if arguments[0] == "get":
    pods = [{{"metadata": {{"name": "agent-" + node}}, "spec": {{"nodeName": node}},
             "status": {{"phase": "Running"}}}} for node in states]
    print(json.dumps({{"items": pods}}))
else:
    node = arguments[3].removeprefix("agent-")
    command = [sys.executable, "-m", "vgpu_nodeagent", *arguments[5:], "--state-dir", states[node]]
    sys.exit(subprocess.run(command).returncode)
"""


@pytest.fixture
def to_agents(cluster: LocalCluster, tmp_path: Path) -> dict[str, str]:
    """An environment in which `kubectl exec` reaches the agents' processes."""
    states = {node: str(cluster.folder / node / "agent") for node in cluster.agents}
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable, states=states))
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_top_shows_what_slices_really_use(
    cluster: LocalCluster, scene: dict[str, str], to_agents: dict[str, str]
):
    def shown() -> dict[str, dict[str, str]]:
        done = run(cluster, "top", environment=to_agents)
        assert (done.returncode, done.stderr) == (0, "")
        return {row["CLAIM"]: row for row in rows(done.stdout)}

    until(cluster, lambda: len(shown()) == 3)  # a new reading comes every three seconds
    first = shown()[scene["first"]]
    assert (first["POD"], first["NODE"], first["CONTAINER"]) == ("first", scene["node"], "main")
    assert first["MEMORY"].endswith("Mi/8Gi")
    assert first["CORES"].endswith("/50%")


def test_top_shows_devices_and_refreshes_in_a_terminal(
    cluster: LocalCluster, scene: dict[str, str], to_agents: dict[str, str]
):
    done = run(cluster, "top", "devices", "--sort-by", "name", environment=to_agents)
    assert (done.returncode, done.stderr) == (0, "")
    assert {row["MODEL"] for row in rows(done.stdout)} == {"Tesla T4"}
    status, text = in_terminal(
        cluster.kubeconfig, "top", "devices", until="Tesla T4", environment=to_agents
    )
    assert status == 130
    assert "Traceback" not in text


def test_top_without_agents_is_one_line(cluster: LocalCluster):
    assert "no agent runs" in refused(cluster, "top")


# doctor and support-bundle.


def is_ready(obj: dict[str, Any]) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_doctor_names_what_is_in_order_and_what_is_missing_with_a_remedy(cluster: LocalCluster):
    for node in ("one", "two"):
        name = agent_pod(node)["metadata"]["name"]
        cluster.wait_for(PODS, name, is_ready, namespace=AGENT_NAMESPACE)
    done = run(cluster, "doctor", "--all", "-o", "json")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    well = {(each["check"], each["message"]) for each in found if each["level"] == "ok"}
    assert ("kinds", "vgpuclaims.vgpu.dev v1alpha1") in well
    assert ("agents", "2 of 2 agents are ready") in well
    assert any(check == "leader" for check, _ in well)
    assert all(each["remedy"] for each in found if each["level"] != "ok")
    # The programs of this cluster are not pods, and doctor reports that.
    assert [each["level"] for each in found if each["check"] == "programs"] == ["warning"]
    errors = [each for each in found if each["level"] == "error"]
    assert done.returncode == (1 if errors else 0)


def test_a_support_bundle_has_objects_and_findings_and_no_variables_value(
    cluster: LocalCluster, tmp_path: Path
):
    create(
        cluster,
        a_pod(
            "secretive",
            a_container(limits=HALF, env=[{"name": "TOKEN", "value": "do-not-tell"}]),
        ),
    )
    path = tmp_path / "bundle.tar.gz"
    assert "wrote" in ask(cluster, "support-bundle", "-f", str(path))
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    files = {each.name: each.read_text() for each in (tmp_path / "bundle").rglob("*.*")}
    assert files.keys() >= {"doctor.json", "vgpuclaims.json", "pods.json", "left-out.txt"}
    assert "TOKEN" in files["pods.json"]
    assert "do-not-tell" not in "".join(files.values())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    delete_pod(cluster, "secretive")


# Completion in a shell.


def completed(cluster: LocalCluster, *words: str) -> list[str]:
    """Return the completions that `kubectl_complete-vgpu` gives kubectl, without the directive."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPLETE, *words],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *found, directive = done.stdout.splitlines()
    assert directive in (":4", ":6")
    return found


def test_names_are_completed_from_the_cluster(cluster: LocalCluster, scene: dict[str, str]):
    assert completed(cluster, "explain", "fi") == ["first"]
    assert completed(cluster, "explain", f"claim/{scene['third']}") == [f"claim/{scene['third']}"]
    assert completed(cluster, "get", "slices", scene["first"]) == [scene["first"]]
    assert completed(cluster, "get", "nodes", "") == ["one", "two"]
    assert completed(cluster, "top", "--node", "t") == ["two"]
    assert completed(cluster, "explain", "-n", "kube-system", "pod/fi") == []
    assert len(completed(cluster, "drain", "device/")) == 2


# drain: these tests come last because they end pods.


def test_a_plan_of_a_drain_changes_nothing_and_needs_a_yes(
    cluster: LocalCluster, scene: dict[str, str]
):
    text = ask(cluster, "drain", scene["other"], "--dry-run")
    assert "evict pod default/third" in text
    done = run(cluster, "drain", scene["other"])
    assert done.returncode == 2
    assert "use --yes" in done.stderr
    assert "Cordoned" not in ask(cluster, "get", "devices")


def test_ctrl_c_at_the_question_changes_nothing(cluster: LocalCluster, scene: dict[str, str]):
    status, text = in_terminal(cluster.kubeconfig, "drain", scene["node"], until="[y/N]")
    assert status == 2
    assert "Traceback" not in text
    assert "nothing is cordoned" in ask(cluster, "drain", scene["node"], "--undo")


def test_a_drained_node_is_free_and_takes_nothing_until_that_is_undone(
    cluster: LocalCluster, scene: dict[str, str]
):
    text = ask(cluster, "drain", f"node/{scene['other']}", "--yes")
    assert "pod default/third: evicted" in text
    assert text.endswith("done\n")

    def is_free() -> bool:
        """Return True if the device is free; its allocated amount is written only once a second."""
        devices = {row["NODE"]: row for row in rows(ask(cluster, "get", "devices"))}
        other = devices[scene["other"]]
        return (other["STATE"], other["MEMORY"]) == ("Cordoned", "0/16Gi")

    until(cluster, is_free)
    assert "CardCordoned" in ask(cluster, "explain", "waits")
    ask(cluster, "drain", scene["other"], "--undo")
    assert running(cluster, "waits")["spec"]["nodeName"] == scene["other"]


def test_a_device_is_drained_by_its_uuid_with_progress_in_a_terminal(
    cluster: LocalCluster, scene: dict[str, str]
):
    items = json.loads(ask(cluster, "get", "devices", "-o", "json"))["items"]
    (uuid,) = [d["status"]["uuid"] for d in items if d["spec"]["nodeName"] == scene["node"]]
    status, text = in_terminal(cluster.kubeconfig, "drain", uuid, "--yes")
    assert status == 0
    assert "2 of 2 claims are gone" in text
    assert "nothing is cordoned" not in ask(cluster, "drain", uuid, "--undo")


@pytest.mark.parametrize("subject", ["none", "node/none", "device/none", "pod/none"])
def test_a_drain_of_what_is_not_there_is_one_line(cluster: LocalCluster, subject: str):
    assert "none" in refused(cluster, "drain", subject, "--yes")
