"""Agents run on the nodes with our labels, and on those with HAMi's labels."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from manual import shell
from vgpu_api.core import Node, Pod
from vgpu_operator.node_filter import NodeFilters, NodeRules

MANIFESTS = Path(__file__).parents[2] / "manifests"
PLATFORMS = MANIFESTS.parent / "docs" / "operations" / "platforms.md"


def agent_of(folder: Path) -> dict[str, Any]:
    """Return the pod template of the built DaemonSet."""
    command = ["kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", str(folder)]
    done = subprocess.run(command, capture_output=True, check=True)
    (daemons,) = (
        found for found in yaml.safe_load_all(done.stdout) if found["kind"] == "DaemonSet"
    )
    return dict(daemons["spec"]["template"])


def runs_on(template: dict[str, Any], **labels: str) -> bool:
    """Return True if selector and affinity let the agent run on a node with these labels."""
    spec = {key: template["spec"].get(key) for key in ("nodeSelector", "affinity", "tolerations")}
    rules = NodeRules.of(Pod.model_validate({"spec": {"containers": [], **spec}}), kinds=None)
    own = {key.replace("__", "/").replace("_dev", ".dev"): word for key, word in labels.items()}
    metadata = {"name": "n", "labels": {"kubernetes.io/os": "linux", **own}}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    filters = NodeFilters()
    filters.put(0, Node.model_validate({"metadata": metadata, "status": status}))
    return 0 in filters.of(rules)


def test_no_agent_runs_on_a_node_that_was_taken_out() -> None:
    template = agent_of(MANIFESTS / "base" / "nodeagent")
    assert runs_on(template)
    assert runs_on(template, gpu="on")
    assert not runs_on(template, gpu="off")
    assert not runs_on(template, vgpu_dev__nodeagent="off")


def with_components(folder: Path, *components: str) -> dict[str, Any]:
    """Return the pod template of the DaemonSet with these components."""
    parts = {
        "resources": [str(MANIFESTS / "base" / "nodeagent")],
        "components": [str(MANIFESTS / "components" / component) for component in components],
    }
    relative = {
        key: [str(Path(path).relative_to("/")) for path in paths] for key, paths in parts.items()
    }
    up = "../" * (len(folder.resolve().parts) - 1)
    document = {key: [f"{up}{path}" for path in paths] for key, paths in relative.items()}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return agent_of(folder)


def test_a_component_lets_agents_run_on_nodes_that_discovery_found_a_gpu_in(tmp_path: Path) -> None:
    """The rule for Node Feature Discovery in the manual sets the label that the component reads."""
    (rule,) = (
        document
        for block in shell.blocks(PLATFORMS.read_text(), "yaml")
        for document in yaml.safe_load_all(block)
        if document.get("kind") == "NodeFeatureRule"
    )
    (labels,) = (each["labels"] for each in rule["spec"]["rules"])
    found = {key.replace("/", "__").replace(".dev", "_dev"): word for key, word in labels.items()}
    template = with_components(tmp_path, "gpu-nodes")
    assert runs_on(template, **found)
    assert not runs_on(template)
    assert not runs_on(template, **found, vgpu_dev__nodeagent="off")


def test_the_component_makes_hamis_label_a_condition(tmp_path: Path) -> None:
    template = with_components(tmp_path, "labelled-nodes")
    assert runs_on(template, gpu="on")
    assert not runs_on(template)
    assert not runs_on(template, gpu="off")
