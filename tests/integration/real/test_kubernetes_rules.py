"""Random pods, nodes and quotas: we judge them as Kubernetes' own code does.

`CASES=100000` in the environment runs more of them, `SEED` others. The oracle is built from the Go
modules of the control plane (`kubernetes_rules`); it knows nothing of ours.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from kubernetes_rules import KubernetesRules, is_buildable
from vgpu_api.core import Pod, PodScopes, ResourceQuota

CASES = int(os.environ.get("CASES", "300"))
SEED = int(os.environ.get("SEED", "29"))
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

pytestmark = [
    pytest.mark.timeout(max(120, CASES)),
    pytest.mark.skipif(not is_buildable(), reason="there is no Go to build Kubernetes' rules with"),
]

Raw = dict[str, Any]


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KubernetesRules]:
    with KubernetesRules() as running:
        yield running


class Chance(random.Random):
    """Draws parts of objects, most of them plain."""

    def maybe(self, share: float = 0.5) -> bool:
        return self.random() < share

    def some(self, most: int) -> range:
        return range(self.randint(0, most))


# Quotas.

CLASSES = ("low", "high", "batch")
PLAIN_SCOPES = (
    *("Terminating", "NotTerminating", "BestEffort", "NotBestEffort"),
    *("PriorityClass", "CrossNamespacePodAffinity", "VolumeAttributesClass"),
)


def some_amounts(chance: Chance) -> dict[str, str]:
    of = {"cpu": ("0", "100m", "1"), "memory": ("0", "64Mi"), "nvidia.com/gpu": ("1",)}
    return {name: chance.choice(of[name]) for name in of if chance.maybe(0.3)}


def a_container(chance: Chance, name: str) -> Raw:
    resources = {"requests": some_amounts(chance), "limits": some_amounts(chance)}
    return {"name": name, "resources": resources if chance.maybe(0.7) else {}}


def a_term(chance: Chance) -> Raw:
    term: Raw = {"topologyKey": "zone", "labelSelector": {}}
    if chance.maybe(0.3):
        term["namespaces"] = chance.choice(([], ["other"]))
    if chance.maybe(0.3):
        term["namespaceSelector"] = chance.choice(({}, {"matchLabels": {"team": "a"}}))
    return term


def pod_rules(chance: Chance) -> Raw:
    rules: Raw = {}
    if chance.maybe():
        rules[REQUIRED] = [a_term(chance) for _ in chance.some(2)]
    if chance.maybe():
        rules[PREFERRED] = [
            {"weight": 1, "podAffinityTerm": a_term(chance)} for _ in chance.some(2)
        ]
    return rules


def a_quota_pod(chance: Chance) -> Raw:
    spec: Raw = {
        "containers": [a_container(chance, f"c{at}") for at in range(chance.randint(1, 2))]
    }
    if chance.maybe(0.3):
        spec["initContainers"] = [a_container(chance, "init")]
    if chance.maybe(0.2):
        spec["resources"] = chance.choice(({}, {"requests": some_amounts(chance)}))
    if chance.maybe():
        spec["activeDeadlineSeconds"] = chance.choice((0, 60))
    if chance.maybe(0.6):
        spec["priorityClassName"] = chance.choice(("", *CLASSES))
    if chance.maybe(0.4):
        spec["affinity"] = {
            kind: pod_rules(chance) for kind in ("podAffinity", "podAntiAffinity") if chance.maybe()
        }
    status = {"qosClass": chance.choice(("BestEffort", "Burstable"))} if chance.maybe(0.1) else {}
    return {"metadata": {"name": "p", "namespace": "d"}, "spec": spec, "status": status}


def a_line(chance: Chance) -> Raw:
    scope = chance.choice((*PLAIN_SCOPES, "PriorityClass", "PriorityClass"))
    if scope != "PriorityClass":
        return {"scopeName": scope, "operator": "Exists"}
    operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    values = chance.sample(CLASSES, chance.randint(1, 2)) if operator.endswith("In") else []
    return {"scopeName": scope, "operator": operator, "values": values}


def a_quota(chance: Chance, name: str) -> Raw:
    spec: Raw = {"hard": {"requests.nvidia.com/gpu": "1"}}
    if chance.maybe():
        spec["scopes"] = chance.sample(PLAIN_SCOPES, chance.randint(0, 2))
    if chance.maybe(0.7):
        spec["scopeSelector"] = {"matchExpressions": [a_line(chance) for _ in chance.some(2)]}
    return {"metadata": {"name": name, "namespace": "d", "resourceVersion": "1"}, "spec": spec}


def test_quotas_count_the_pods_that_kubernetes_counts(kubernetes: KubernetesRules) -> None:
    chance, outcomes = Chance(SEED), [0, 0]
    for _ in range(CASES):
        pod = a_quota_pod(chance)
        quotas = [a_quota(chance, f"q{number}") for number in range(8)]
        theirs = kubernetes.counted(pod, quotas)
        scopes = PodScopes.of(Pod.model_validate(pod))
        for raw in quotas:
            ours = ResourceQuota.model_validate(raw).spec.counts(scopes)
            name = raw["metadata"]["name"]
            assert ours == (name in theirs), f"{pod['spec']} {pod['status']} {raw['spec']}"
            outcomes[ours] += 1
    assert min(outcomes) > CASES, "both answers are met often"
