"""Pods that name ResourceClaimTemplates of our or HAMi's classes ask as with resource names."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest

from builders import CLAIMS
from vgpu_api.core import Pod
from vgpu_api.dra import HAMI_CLASS
from vgpu_api.names import ANNOTATION_DEVICE_SELECTOR as KEY
from vgpu_api.names import NVIDIA_NUMA_BIND
from vgpu_operator.admission.rules import (
    Denied,
    NamedObjects,
    ask_by_claims,
    mutate_pod,
    objects_named_by,
)
from vgpu_operator.dialects import read

Raw = dict[str, Any]


def a_pod(*containers: Raw, entry: str = "gpu") -> Raw:
    return {
        "metadata": {"name": "pod-1"},
        "spec": {
            "containers": list(containers) or [using("main", entry)],
            "resourceClaims": [{"name": entry, "resourceClaimTemplateName": "small"}],
        },
    }


def using(name: str, entry: str = "gpu", **more: str) -> Raw:
    return {"name": name, "resources": {"claims": [{"name": entry, **more}]}}


def a_request(name: str = "gpu", *, class_name: str = "vgpu.dev", **exactly: Any) -> Raw:
    return {"name": name, "exactly": {"deviceClassName": class_name, **exactly}}


def capacity(**requests: Any) -> Raw:
    return {"capacity": {"requests": requests}}


def cel(expression: str) -> Raw:
    return {"selectors": [{"cel": {"expression": expression}}]}


def a_template(*requests: Raw, **devices: Any) -> Raw:
    spec = {"devices": {"requests": list(requests), **devices}}
    return {"metadata": {"name": "small"}, "spec": {"spec": spec}}


def changed(pod: Raw, template: Raw) -> Any:
    named = objects_named_by(pod)
    found = NamedObjects(dict.fromkeys(named.templates, template), {})
    operations = ask_by_claims(pod, found, CLAIMS)
    return jsonpatch.apply_patch(copy.deepcopy(pod), operations)


def limits(pod: Raw, template: Raw) -> Raw:
    (container,) = changed(pod, template)["spec"]["containers"]
    found: Raw = container["resources"]["limits"]
    return found


def refused(template: Raw, pod: Raw | None = None) -> str:
    with pytest.raises(Denied) as denied:
        changed(pod or a_pod(), template)
    return denied.value.message


def test_a_pod_asks_for_what_its_template_says_and_names_it_no_more() -> None:
    request = a_request(count=2, **capacity(memory="8Gi", cores=50))
    pod = changed(a_pod(), a_template(request))
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["resourceClaims"] == []
    assert container["resources"]["claims"] == []
    amounts = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8192Mi", "nvidia.com/gpucores": "50"}
    assert container["resources"]["limits"] == container["resources"]["requests"] == amounts


def test_what_it_asks_for_is_read_as_hamis_words_are() -> None:
    """Admission treats it like any other pod in Claims mode."""
    pod = changed(a_pod(), a_template(a_request(**capacity(memory="8Gi", cores=50))))
    operations = mutate_pod(pod, CLAIMS, None, token="0" * 12)
    admitted = jsonpatch.apply_patch(pod, operations)
    demand = read(Pod.model_validate(admitted), CLAIMS)
    assert demand is not None
    assert demand.spec is not None
    (request,) = demand.spec.requests
    assert (request.name, request.count, request.memory, request.cores) == ("main", 1, "8Gi", 50)
    (container,) = admitted["spec"]["containers"]
    assert container["resources"]["claims"] == [{"name": "vgpu", "request": "main"}]


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        ("vgpu.dev", {"nvidia.com/gpu": "1"}),
        (HAMI_CLASS, {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}),
    ],
)
def test_what_is_not_asked_for_has_the_defaults_of_its_class(
    class_name: str, expected: Raw
) -> None:
    assert limits(a_pod(), a_template(a_request(class_name=class_name))) == expected


@pytest.mark.parametrize("domain", ["vgpu.dev", HAMI_CLASS])
def test_capacities_may_have_the_domain_of_a_class(domain: str) -> None:
    amounts = capacity(**{f"{domain}/memory": "1Gi", f"{domain}/cores": "30"})
    found = limits(a_pod(), a_template(a_request(**amounts)))
    assert (found["nvidia.com/gpumem"], found["nvidia.com/gpucores"]) == ("1024Mi", "30")


def test_memory_is_rounded_up_to_mebibytes_as_kubernetes_rounds_to_a_step() -> None:
    found = limits(a_pod(), a_template(a_request(**capacity(memory="1000001"))))
    assert found["nvidia.com/gpumem"] == "1Mi"


def test_each_container_gets_the_devices_of_its_request() -> None:
    pod = a_pod(using("one", request="a"), using("two", request="b"))
    template = a_template(
        a_request("a", **capacity(memory="1Gi")), a_request("b", **capacity(memory="2Gi"))
    )
    one, two = changed(pod, template)["spec"]["containers"]
    assert one["resources"]["limits"]["nvidia.com/gpumem"] == "1024Mi"
    assert two["resources"]["limits"]["nvidia.com/gpumem"] == "2048Mi"


def test_templates_of_other_classes_are_left_alone() -> None:
    pod = a_pod()
    template = a_template(a_request(class_name="gpu.nvidia.com"))
    assert changed(pod, template) == pod


def test_a_pod_without_templates_names_none() -> None:
    named = {"name": "nic", "resourceClaimName": "mine"}
    named_by = objects_named_by({"spec": {"containers": [], "resourceClaims": [named]}})
    assert named_by == ({}, {"nic": "mine"})


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "vgpu.dev"',
        "device.attributes['vgpu.dev'].type == 'hami-gpu' // as in HAMi's own class",
        f'device.attributes["{HAMI_CLASS}"].type in ["hami-gpu"]',
    ],
)
def test_selectors_that_every_device_meets_choose_nothing(expression: str) -> None:
    pod = changed(a_pod(), a_template(a_request(**cel(expression))))
    assert "annotations" not in pod["metadata"]


def test_selectors_hold_together_and_become_one_annotation() -> None:
    chosen = [f'device.attributes["vgpu.dev"].productName in ["{model}", "T4"]' for model in "AB"]
    every = 'device.attributes["vgpu.dev"].type == "hami-gpu"'
    selectors = [{"cel": {"expression": each}} for each in (*chosen, every)]
    pod = changed(a_pod(), a_template(a_request(selectors=selectors)))
    assert pod["metadata"]["annotations"] == {KEY: f"({chosen[0]}) && ({chosen[1]})"}


def test_a_selector_that_stands_alone_is_kept_as_written() -> None:
    expression = 'device.capacity["vgpu.dev"].memory.isGreaterThan(quantity("20Gi"))'
    pod = changed(a_pod(), a_template(a_request(**cel(expression))))
    assert pod["metadata"]["annotations"] == {KEY: expression}


def test_a_selector_beside_another_one_of_the_pod_is_refused() -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {KEY: 'device.attributes["vgpu.dev"].uuid == "GPU-1"'}
    template = a_template(a_request(**cel('device.attributes["vgpu.dev"].uuid == "GPU-2"')))
    assert refused(template, pod).startswith(f"metadata.annotations[{KEY}]: Forbidden")


def test_devices_of_one_numa_node_are_asked_for_by_a_constraint() -> None:
    template = a_template(a_request(count=2), constraints=[{"matchAttribute": "vgpu.dev/numa"}])
    pod = changed(a_pod(), template)
    assert pod["metadata"]["annotations"] == {NVIDIA_NUMA_BIND: "true"}


REFUSED: list[tuple[Raw, str]] = [
    (a_template({"name": "gpu", "firstAvailable": [
        {"name": "a", "deviceClassName": "vgpu.dev"}]}),
     "requests[0].firstAvailable: Forbidden: alternatives are not chosen from; write exactly"),
    (a_template(a_request(allocationMode="All")),
     'allocationMode: Unsupported value: "All": supported values: "ExactCount"'),
    (a_template(a_request(adminAccess=True)), "adminAccess: Forbidden"),
    (a_template(a_request(tolerations=[{"operator": "Exists"}])), "tolerations: Forbidden"),
    (a_template(a_request(**capacity(memory="much"))),
     'capacity.requests[memory]: Invalid value: "much": must be a size such as 8Gi'),
    (a_template(a_request(**capacity(cores=150))),
     "capacity.requests[cores]: Invalid value: 150: must be a whole percentage, 0 to 100"),
    (a_template(a_request(**capacity(**{"memory": "1Gi", "vgpu.dev/memory": "1Gi"}))),
     'capacity.requests: Duplicate value: "vgpu.dev/memory"'),
    (a_template(a_request(**capacity(**{"nics.example.com/memory": "1Gi"}))),
     'capacity.requests: Unsupported value: "nics.example.com/memory"'),
    (a_template(a_request(**cel('device.attributes["vgpu.dev"].uuid in []'))),
     "] is no text in quotes"),
    (a_template(a_request(**cel('device.attributes["vgpu.dev"].uuid in ["a" "b"]'))),
     "is not understood here"),
    (a_template(a_request(**capacity(slots=1))),
     'capacity.requests: Unsupported value: "slots": supported values: "cores", "memory"'),
    (a_template(a_request(), constraints=[{"distinctAttribute": "vgpu.dev/uuid"}]),
     "constraints[0].distinctAttribute: Forbidden"),
    (a_template(a_request(), constraints=[{"matchAttribute": "vgpu.dev/nvlink"}]),
     'constraints[0].matchAttribute: Unsupported value: "vgpu.dev/nvlink"'),
    (a_template(a_request(), constraints=[{"matchAttribute": "vgpu.dev/nvlink"}]),
     "annotate the pod with hami.io/gpu-scheduler-policy: topology"),
    (a_template(a_request(), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]),
     'matchAttribute: Unsupported value: "resource.kubernetes.io/pcieRoot": supported values: '
     "hami-core-gpu.project-hami.io/numa, vgpu.dev/numa; the operator does not know the PCIe root"),
    (a_template(a_request(), config=[{"opaque": {}}]), "config[0]: Forbidden"),
    (a_template(a_request(), a_request("nic", class_name="nics.example.com")),
     "pod has"),
    (a_template(a_request(**cel("device.attributes[\"vgpu.dev\"].minor == 1"))),
     "Unsupported value"),
    (a_template(a_request(**cel('device.capacity["vgpu.dev"].cores.isGreaterThan(quantity("50"))'))),
     "supported are comparisons of productName or uuid"),
    (a_template(a_request(selectors=[
        {"cel": {"expression": f'device.attributes["vgpu.dev"].productName == "{model}"'}}
        for model in "AB"])),
     ": no device can have all these values; leave one of them out"),
    (a_template(a_request(**cel('device.driver == "gpu.nvidia.com"'))), "Unsupported value"),
    (a_template(a_request(**cel('device.attributes["vgpu.dev"].uuid == "a" || '
                                'device.attributes["vgpu.dev"].productName == "b"'))),
     "|| cannot join a uuid with anything else; use a pod for each"),
    (a_template(a_request(**cel('device.attributes["vgpu.dev"].uuid == "a" && '
                                'device.attributes["vgpu.dev"].uuid == "b"'))),
     "no device can have all these values"),
    (a_template(a_request(**cel("(" * 40 + "device" + ")" * 40))), "nested too deeply"),
    (a_template(a_request(**cel('device.attributes["other"].uuid == "a"'))),
     "there are no attributes of other"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "sentence"), REFUSED)
def test_what_cannot_be_honoured_is_refused_with_the_field(template: Raw, sentence: str) -> None:
    message = refused(template)
    if sentence == "pod has":  # two requests, and the container does not say which
        assert message.startswith("spec.containers[0].resources.claims[gpu].request: Required")
        return
    assert message.startswith("resourceclaimtemplates/small: spec.spec.devices.")
    assert sentence in message


def test_a_request_that_two_containers_share_is_refused() -> None:
    message = refused(a_template(a_request()), a_pod(using("one"), using("two")))
    assert 'Invalid value: "one, two": must be used by one container' in message


def test_a_request_that_nobody_uses_is_refused() -> None:
    message = refused(a_template(a_request()), a_pod({"name": "main"}))
    assert 'Invalid value: "none"' in message


def test_different_selectors_in_one_pod_are_refused() -> None:
    pod = a_pod(using("one", request="a"), using("two", request="b"))
    template = a_template(
        a_request("a", **cel('device.attributes["vgpu.dev"].uuid == "x"')), a_request("b")
    )
    assert "must have the same selectors" in refused(template, pod)
