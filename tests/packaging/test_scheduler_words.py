"""The scheduler and the webhooks in manifests/ name the resources that the configuration lists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_api.config import load_cluster_config
from vgpu_api.vendors import NOT_SERVED, kinds
from vgpu_operator.extender.binding import ANSWER_WITHIN_S

MANIFESTS = Path(__file__).parents[2] / "manifests"


FILES = ("base/scheduler/scheduler.yaml", "examples/main-scheduler/kube-scheduler.yaml")


@pytest.mark.parametrize("file", FILES)
def test_a_scheduler_waits_a_little_longer_than_bind_takes_and_not_much(file: str) -> None:
    """A call to an address that no longer exists blocks the scheduler's loop until the timeout."""
    (extender,) = yaml.safe_load((MANIFESTS / file).read_text())["extenders"]
    assert ANSWER_WITHIN_S + 1 <= float(extender["httpTimeout"].removesuffix("s")) <= 10


@pytest.mark.parametrize("file", FILES)
def test_a_scheduler_manages_every_word_in_which_pods_ask(file: str) -> None:
    config = yaml.safe_load((MANIFESTS / file).read_text())
    (extender,) = config["extenders"]
    named = {entry["name"]: entry["ignoredByScheduler"] for entry in extender["managedResources"]}
    assert named == load_cluster_config(MANIFESTS / "base" / "config.yaml").managed_resources()


def written() -> dict[str, str]:
    """Return the expressions, by name."""
    text = (MANIFESTS / "base" / "webhook" / "expressions.yaml").read_text()
    return dict(yaml.safe_load(text)["data"])


@pytest.mark.parametrize("name", ["asks", "misspelt", "jobs", "unseen"])
def test_the_webhooks_see_the_pods_that_ask_for_devices_that_are_served_and_no_others(
    name: str,
) -> None:
    (listed, *_) = re.findall(r"\['(?:nvidia|aliyun|volcano)[^\]]*\]", written()[name])
    names = set(re.findall(r"'([^']*)'", listed))
    config = load_cluster_config(MANIFESTS / "base" / "config.yaml")
    ours = set(config.managed_resources())
    ours -= {name for kind in kinds() for name in kind.resources}
    # If a vendor's plugin stays, its count makes the request, and its names are not misspelt
    served = [kind for kind in kinds() if kind.name not in config.vendors.leave_alone]
    counts = {name for kind in served for name in kind.requested_by}
    assert names == (ours if name == "misspelt" else ours | counts)


def test_pods_are_warned_whose_words_do_nothing() -> None:
    """Cover an amount without its vendor's count, and devices that are not served."""
    config = load_cluster_config(MANIFESTS / "base" / "config.yaml")
    served = [kind for kind in kinds() if kind.name not in config.vendors.leave_alone]
    lists = re.findall(r"\[('[^\]]*')\]", written()["misspelt"])[1:4]
    not_served, amounts, counts = (set(re.findall(r"'([^']*)'", each)) for each in lists)
    assert not_served == set(NOT_SERVED)
    assert counts == {name for kind in served for name in kind.requested_by}
    assert amounts == {
        name
        for kind in served
        for name in (*kind.resources, *kind.unsupported.resources)
        if name not in kind.requested_by
    }


def built() -> list[Any]:
    """Return the objects that kustomize builds from the default overlay."""
    command = ["kubectl", "kustomize", str(MANIFESTS / "overlays" / "default")]
    done = subprocess.run(command, capture_output=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_kustomize_writes_each_expression_to_its_places_and_leaves_the_list_itself_out() -> None:
    objects = {(found["kind"], found["metadata"]["name"]): found for found in built()}
    hooks = {
        hook["name"].partition(".")[0]: hook
        for kind in ("Mutating", "Validating")
        for hook in objects[f"{kind}WebhookConfiguration", "vgpu"]["webhooks"]
    }
    expressions = written()
    places = {
        "mutate-pods": "asks",
        "mutate-ephemeral-containers": "asks",
        "warn-pods": "misspelt",
        "check-volcano-jobs": "jobs",
    }
    for hook, expression in places.items():
        (condition,) = hooks[hook]["matchConditions"]
        assert condition["expression"] == expressions[expression]
    policy = objects["ValidatingAdmissionPolicy", "vgpu-admitted"]
    assert policy["spec"]["matchConditions"][0]["expression"] == expressions["unseen"]
    (condition,) = objects["ValidatingAdmissionPolicy", "vgpu-ephemeral-containers"]["spec"][
        "matchConditions"
    ]
    assert condition["expression"] == expressions["asks"]
    assert ("ConfigMap", "vgpu-expressions") not in objects


def test_every_policy_has_a_condition_that_spares_what_is_in_order_its_rules() -> None:
    """A condition costs the API server one copy of the object, the rules cost three.

    See docs/design/loop-and-cost.md.
    """
    policies = [found for found in built() if found["kind"] == "ValidatingAdmissionPolicy"]
    assert policies
    assert [found for found in policies if not found["spec"].get("matchConditions")] == []


def test_every_webhook_of_pods_and_the_backstops_leave_the_same_namespaces_out() -> None:
    objects = built()
    selectors = [
        hook["namespaceSelector"]
        for found in objects
        if found["kind"].endswith("WebhookConfiguration")
        for hook in found["webhooks"]
        if hook["rules"][0]["resources"][0].startswith("pods")
    ]
    selectors += [
        found["spec"]["matchConstraints"]["namespaceSelector"]
        for found in objects
        if found["kind"] == "ValidatingAdmissionPolicy"
        and found["metadata"]["name"] in ("vgpu-admitted", "vgpu-ephemeral-containers")
    ]
    assert len(selectors) == 5
    assert all(selector == selectors[0] for selector in selectors)
