"""Agents run on the nodes with our labels, and on those with HAMi's labels."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from vgpu_api.core import Node, Pod
from vgpu_operator.node_filter import NodeFilters, NodeRules

MANIFESTS = Path(__file__).parents[2] / "manifests"


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


def test_the_component_makes_hamis_label_a_condition(tmp_path: Path) -> None:
    parts = {
        "resources": [str(MANIFESTS / "base" / "nodeagent")],
        "components": [str(MANIFESTS / "components" / "labelled-nodes")],
    }
    relative = {
        key: [str(Path(path).relative_to("/")) for path in paths] for key, paths in parts.items()
    }
    up = "../" * (len(tmp_path.resolve().parts) - 1)
    document = {key: [f"{up}{path}" for path in paths] for key, paths in relative.items()}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    template = agent_of(tmp_path)
    assert runs_on(template, gpu="on")
    assert not runs_on(template)
    assert not runs_on(template, gpu="off")
