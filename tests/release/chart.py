"""The Helm chart, generated from the kustomize manifests: the same objects under conditions.

Each component of `manifests/components` is a value, and `mode` chooses the overlay. kustomize
builds the overlay of each mode with and without each component; an object that a component adds,
changes or removes is written once for each combination of the components that touch it, in nested
conditions. So the chart has no template that could differ from the manifests, and a test compares
both, object by object. `values.schema.json` follows from the values, so Helm refuses a key that
would have no effect.

`python -m release.chart FOLDER` writes it.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from manual.words import ROOT

MANIFESTS = ROOT / "manifests"
COMPONENTS = tuple(sorted(folder.name for folder in (MANIFESTS / "components").iterdir()))
MODES = {"Extender": "default", "Gate": "gate", "Claims": "claims"}
"""The overlay of each scheduling mode."""
_NOT_IN = {"Extender": (), "Gate": ("beside-hami",), "Claims": ("beside-hami", "resource-claims")}
"""Components that a mode cannot have, or always has: a check refuses beside-hami there."""
_CONFIGS = {
    "Extender": MANIFESTS / "base" / "config.yaml",
    "Gate": MANIFESTS / "overlays" / "gate" / "config.yaml",
    "Claims": MANIFESTS / "overlays" / "claims" / "config.yaml",
}

Key: TypeAlias = tuple[str, str, str, str]
"""apiVersion, kind, namespace and name of an object."""
Objects: TypeAlias = Mapping[Key, Mapping[str, Any]]

_CRD = "CustomResourceDefinition"
NOWHERE = "registry.invalid/vgpu"
"""Where the manifests' own images are: no registry can have this name (RFC 6761)."""
_IMAGES = {
    f"{NOWHERE}/operator": "operator",
    f"{NOWHERE}/nodeagent": "nodeagent",
    "registry.k8s.io/kube-scheduler": "scheduler",
}
_KUBELET = {
    "devicePlugins": "/var/lib/kubelet/device-plugins",
    "podResources": "/var/lib/kubelet/pod-resources",
    "pods": "/var/lib/kubelet/pods",
}
"""The kubelet's folders on hosts, by the name of their value; in containers they never move."""
_RUNBOOKS = "https://example.com/vgpu/operations/monitoring.html"
"""The page that alerts link to, as the manifests have it."""
_CONFIG = "vgpu-config-@"
"""Stands for the name of the ConfigMap, whose suffix follows from the configuration."""
_WORKLOADS = ("operator", "webhook", "scheduler", "web", "nodeagent")
"""The programs that have a section among the values, named as their image's workload."""
_DRIVER_ROOT = "--driver-root="
_MARK = re.compile(r"(?P<head>\s*)(?P<key>\w+): '@(?P<how>json|with) (?P<value>\.[.\w]+)@'")
_HELPERS = """\
{{- /* A changed configuration has another name, so that a change of it rolls its readers. */ -}}
{{- define "vgpu.config" -}}
{{- if .Values.config }}vgpu-config-{{ .Values.config | sha256sum | trunc 10 }}
{{- else }}{{ get (dict %s) .Values.mode }}{{ end }}
{{- end }}

{{- /* kube-scheduler as the cluster has it, without what a provider adds to the version. */ -}}
{{- define "vgpu.scheduler" -}}
{{- if .Values.images.scheduler }}{{ .Values.images.scheduler }}
{{- else }}{{ with semver .Capabilities.KubeVersion.Version -}}
registry.k8s.io/kube-scheduler:v{{ .Major }}.{{ .Minor }}.{{ .Patch }}
{{- end }}{{ end }}
{{- end }}
"""
_CHECKS = """\
{{- /* What the schema cannot refuse, because it follows from two values or from the cluster. */ -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if and (eq .Values.mode "Claims") (semverCompare "<1.36.0-0" $version) }}
{{- $needs := "mode: Invalid value: Claims: needs Kubernetes 1.36 or later, and this is" }}
{{- fail (printf "%s %s" $needs $version) }}
{{- end }}
{{- if and .Values.components.besideHami (ne .Values.mode "Extender") }}
{{- fail "mode: Invalid value: components.besideHami needs mode Extender" }}
{{- end }}
{{- if .Values.config }}
{{- $mode := dig "scheduling" "mode" "Extender" (fromYaml .Values.config) }}
{{- if ne $mode .Values.mode }}
{{- $differs := "config: Invalid value: scheduling.mode is" }}
{{- fail (printf "%s %s, and the chart's mode is %s" $differs $mode .Values.mode) }}
{{- end }}
{{- end }}
"""
_NOTES = """\
vgpu {{ .Chart.AppVersion }} is installed. Wait until it runs:

  kubectl -n vgpu-system rollout status deployment/vgpu-operator
  kubectl -n vgpu-system rollout status deployment/vgpu-webhook
  kubectl -n vgpu-node rollout status daemonset/vgpu-nodeagent

Then list the GPUs, and check the installation:

  kubectl get gpudevices
  kubectl vgpu doctor
{{- if and (eq .Values.mode "Extender") (not .Values.scheduler.enabled) }}

WARNING: scheduler.enabled is false. Pods that ask for GPUs wait until a kube-scheduler of yours
asks the operator's extender (manifests/examples/main-scheduler).
{{- end }}
{{- if semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version }}

This cluster runs Kubernetes {{ .Capabilities.KubeVersion.Version }}. Before 1.36 agents read the
pods of all nodes, as components.agentsReadAllPods lets them.
{{- end }}
{{- if and .Values.components.alerts (hasPrefix "https://example.com/" .Values.runbooks) }}

WARNING: alerts link to {{ .Values.runbooks }}, which is an example.
Set runbooks to the address of docs/operations/monitoring.md, published where you read it.
{{- end }}
{{- range $name, $image := .Values.images }}
{{- if hasPrefix "registry.invalid/" $image }}

WARNING: images.{{ $name }} is {{ $image }}, which no registry has.
Unless it is on the nodes, push the image to a registry of yours and set images.{{ $name }}
to its reference.
{{- end }}
{{- end }}

Before `helm uninstall`, run `kubectl vgpu uninstall`: it removes what Helm leaves.
"""


def chart(version: str) -> dict[str, str]:
    """Return the files of the chart by their paths below its folder.

    Args:
        version: The version of chart and application: `MAJOR.MINOR.PATCH`.
    """
    values = _values(kustomized(()))
    names = {mode: _config_name(kustomized((), mode)) for mode in MODES}
    words = " ".join(f'"{mode}" "{name}"' for mode, name in names.items())
    files = {
        "Chart.yaml": yaml.safe_dump(
            {
                "apiVersion": "v2",
                "name": "vgpu",
                "description": "Exact, explainable GPU sharing for Kubernetes",
                "type": "application",
                "version": version,
                "appVersion": version,
                "kubeVersion": ">=1.31.0-0",
            },
            sort_keys=False,
        ),
        "values.yaml": values,
        "values.schema.json": json.dumps(_schema(yaml.safe_load(values)), indent=1) + "\n",
        **{f"files/config-{mode}.yaml": path.read_text() for mode, path in _CONFIGS.items()},
        "templates/_helpers.tpl": _HELPERS % words,
        "templates/checks.yaml": _CHECKS,
        "templates/NOTES.txt": _NOTES,
    }
    by_mode = {mode: _variants(mode) for mode in MODES}
    for key in sorted({key for variants in by_mode.values() for key in variants}):
        _, kind, namespace, obj_name = key
        place = "-".join(
            filter(None, (kind.lower(), namespace, obj_name.replace(_CONFIG, "vgpu-config")))
        )
        if kind == _CRD:
            crd = by_mode["Extender"][key][()]
            assert crd is not None, "the CRDs are in every mode"
            files[f"crds/{obj_name}.yaml"] = yaml.safe_dump(dict(crd), sort_keys=False)
        else:
            files[f"templates/{place}.yaml"] = _template(
                key, {mode: variants.get(key, {(): None}) for mode, variants in by_mode.items()}
            )
    return files


@cache
def kustomized(components: Sequence[str], mode: str = "Extender") -> Objects:
    """Return the objects that kustomize builds from a mode's overlay with these components.

    Raises:
        subprocess.CalledProcessError: The overlay does not build.
    """
    with tempfile.TemporaryDirectory() as folder:
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(MANIFESTS / "overlays" / MODES[mode], folder)],
            "components": [
                os.path.relpath(MANIFESTS / "components" / c, folder) for c in components
            ],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(document))
        built = subprocess.run(
            ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
        )
    # libyaml: the parser in Python takes as long as kustomize, for each of seventy builds.
    return by_key(yaml.load_all(built.stdout, Loader=yaml.CSafeLoader))


def by_key(objects: Iterable[Any]) -> Objects:
    """Return the objects by their kind, namespace and name."""
    return {
        (
            obj["apiVersion"],
            obj["kind"],
            obj["metadata"].get("namespace", ""),
            obj["metadata"]["name"],
        ): obj
        for obj in objects
        if obj
    }


def value_of(component: str) -> str:
    """Return the name of a component's value, in camelCase."""
    first, *others = component.split("-")
    return first + "".join(word.capitalize() for word in others)


@cache
def project_version() -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


@cache
def scheduler_objects() -> frozenset[Key]:
    """Return the objects that `scheduler.enabled` controls."""
    folder = MANIFESTS / "base" / "scheduler"
    built = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True
    )
    return frozenset(by_key(yaml.safe_load_all(built.stdout)))


def _config_name(objects: Objects) -> str:
    (name,) = {
        name
        for _, kind, _, name in objects
        if kind == "ConfigMap" and name.startswith("vgpu-config-")
    }
    return name


def _values(default: Objects) -> str:
    """Return the values with their defaults, each with a comment."""
    workloads = {**kustomized(("web",)), **default}
    ours = {
        name: next(obj for key, obj in workloads.items() if _workload(key) == name)
        for name in _WORKLOADS
    }
    (operator,), (agent,) = (_pod(ours[name])["containers"] for name in ("operator", "nodeagent"))
    lines = [
        "# How pods come to nodes (docs/install.md): Extender, Gate, or Claims (Kubernetes 1.36).",
        "mode: Extender",
        "# Images, each with tag or digest. Without one for the scheduler it is kube-scheduler of",
        "# the cluster's version, from registry.k8s.io.",
        "images:",
        f"  nodeagent: {agent['image']}",
        f"  operator: {operator['image']}",
        '  scheduler: ""',
        "# Secrets in vgpu-system and vgpu-node for a private registry: [{name: NAME}].",
        "imagePullSecrets: []",
        "# The programs. scheduler.enabled: false: the cluster's own scheduler asks the extender",
        "# (manifests/examples/main-scheduler). nodeagent.driverRoots: where hosts may have the",
        "# driver.",
    ]
    for name in _WORKLOADS:
        lines += _values_of(name, ours[name])
    lines += [
        "# Folders of the kubelets on the hosts. A kubelet's --root-dir moves podResources and",
        "# pods, and not devicePlugins.",
        "kubelet:",
        *(f"  {name}: {path}" for name, path in _KUBELET.items()),
        "# The cluster's configuration as one text (docs/reference/configuration.md);",
        "# empty: the default of the mode. Its scheduling.mode must be the mode.",
        'config: ""',
        "# The page that alerts link to, published where you read it; each has a heading there.",
        f"runbooks: {_RUNBOOKS}",
        "# manifests/components; each folder has a word on what it does.",
        "components:",
    ]
    lines += [f"  {value_of(component)}: false" for component in COMPONENTS]
    return "\n".join(lines) + "\n"


def _values_of(name: str, obj: Mapping[str, Any]) -> list[str]:
    """Return the section of a program."""
    pod = _pod(obj)
    values: dict[str, Any] = {} if name != "scheduler" else {"enabled": True}
    if "replicas" in obj["spec"]:
        values["replicas"] = obj["spec"]["replicas"]
    if name == "nodeagent":
        values["driverRoots"] = [
            argument.removeprefix(_DRIVER_ROOT)
            for argument in pod["containers"][0]["args"]
            if argument.startswith(_DRIVER_ROOT)
        ]
    values |= {
        "priorityClassName": pod.get("priorityClassName", ""),
        "resources": pod["containers"][0]["resources"],
        "nodeSelector": pod.get("nodeSelector", {}),
        "tolerations": pod.get("tolerations", []),
    }
    return [f"{name}:", *(f"  {key}: {json.dumps(value)}" for key, value in values.items())]


def _workload(key: Key) -> str:
    """Return the name of the program's section among the values, or nothing."""
    _, kind, _, name = key
    name = name.removeprefix("vgpu-")
    return name if kind in ("Deployment", "DaemonSet") and name in _WORKLOADS else ""


def _pod(obj: Mapping[str, Any]) -> Any:
    return obj["spec"]["template"]["spec"]


def _schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of the chart's values, which allows only the keys of the defaults."""
    schema = _schema_of(values)
    # Helm gives this key to a chart that is part of another chart.
    schema["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


_TEXT: Mapping[str, Any] = {"type": "string"}
_AMOUNTS = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
_FORMS: Mapping[str, Mapping[str, Any]] = {
    "mode": {"enum": list(MODES)},
    "replicas": {"type": "integer", "minimum": 1},
    "priorityClassName": _TEXT,
    "imagePullSecrets": {"type": "array", "items": _object(name=_TEXT)},
    "driverRoots": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "string", "pattern": "^/"},
    },
    "resources": _object(limits=_AMOUNTS, requests=_AMOUNTS),
    "nodeSelector": {"type": "object", "additionalProperties": _TEXT},
    "tolerations": {
        "type": "array",
        "items": _object(
            key=_TEXT,
            operator={"enum": ["Exists", "Equal", "Lt", "Gt"]},
            value=_TEXT,
            effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            tolerationSeconds={"type": "integer"},
        ),
    },
}
"""The schemas of values whose form does not follow from the default, by their keys."""


def _schema_of(value: Any) -> dict[str, Any]:
    """Return the schema of one value; its type follows from the default or is in `_FORMS`."""
    if isinstance(value, Mapping):
        return _object(
            **{key: dict(_FORMS.get(key) or _schema_of(each)) for key, each in value.items()}
        )
    if isinstance(value, bool):
        return {"type": "boolean"}
    if value.startswith("/"):
        return {"type": "string", "pattern": "^/"}
    # Without this, only the kubelet would notice an empty image; an empty configuration is the
    # default.
    return {"type": "string", "minLength": 1} if value else {"type": "string"}


_Variants: TypeAlias = Mapping[tuple[str, ...], Mapping[str, Any] | None]
"""An object for each set of those components that touch it; None where it is not there."""


@cache
def _neutral(components: tuple[str, ...], mode: str) -> Objects:
    """Return a mode's objects with `_CONFIG` in place of the ConfigMap's name and without its data.

    Otherwise everything that mounts it would be another object in each mode.
    """
    objects = kustomized(components, mode)
    text = json.dumps(list(objects.values())).replace(_config_name(objects), _CONFIG)
    found = json.loads(text)
    for obj in found:
        if (obj["kind"], obj["metadata"]["name"]) == ("ConfigMap", _CONFIG):
            obj["data"] = {"config.yaml": "@config@"}
    return by_key(found)


def _variants(mode: str) -> dict[Key, _Variants]:
    """Return the variants of every object that a mode can have."""
    default = _neutral((), mode)
    components = [c for c in COMPONENTS if c not in _NOT_IN[mode]]
    alone = {component: _neutral((component,), mode) for component in components}
    found: dict[Key, _Variants] = {}
    for key in set(default).union(*alone.values()):
        touching = [c for c in components if alone[c].get(key) != default.get(key)]
        subsets = itertools.chain.from_iterable(
            itertools.combinations(touching, size) for size in range(len(touching) + 1)
        )
        found[key] = {subset: _neutral(subset, mode).get(key) for subset in subsets}
    return found


def _template(key: Key, by_mode: Mapping[str, _Variants]) -> str:
    """Return the template of an object: once if all modes have the same, else once for each."""
    texts = {
        mode: _conditional(max(variants, key=len), (), variants, _workload(key))
        for mode, variants in by_mode.items()
    }
    text = ""
    for each in dict.fromkeys(filter(None, texts.values())):
        modes = [mode for mode in MODES if texts[mode] == each]
        names = " ".join(f'"{mode}"' for mode in modes)
        chosen = f"{{{{- if has .Values.mode (list {names}) }}}}\n{each}{{{{- end }}}}\n"
        text += each if len(modes) == len(MODES) else chosen
    if key in scheduler_objects():
        text = "{{- if .Values.scheduler.enabled }}\n" + text + "{{- end }}\n"
    return text


def _conditional(
    open_: Sequence[str], chosen: tuple[str, ...], variants: _Variants, workload: str
) -> str:
    """Return nested conditions over the remaining components; the innermost has the object."""
    if not open_:
        obj = variants[tuple(sorted(chosen))]
        return "" if obj is None else _escaped(obj, workload)
    component, *others = open_
    with_it = _conditional(others, (*chosen, component), variants, workload)
    without = _conditional(others, chosen, variants, workload)
    condition = f".Values.components.{value_of(component)}"
    if component == "agents-read-all-pods":  # agents of an older cluster are never ready without it
        older = '(semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version)'
        condition = f"(or {condition} {older})"
    if not without:
        return f"{{{{- if {condition} }}}}\n{with_it}{{{{- end }}}}\n"
    if not with_it:
        return f"{{{{- if not {condition} }}}}\n{without}{{{{- end }}}}\n"
    return f"{{{{- if {condition} }}}}\n{with_it}{{{{- else }}}}\n{without}{{{{- end }}}}\n"


def _marked(obj: Mapping[str, Any], workload: str) -> Mapping[str, Any]:
    """Return a workload with a mark in place of each field that is a value."""
    marked: dict[str, Any] = copy.deepcopy(dict(obj))
    pod, place = _pod(marked), f".Values.{workload}"
    if "replicas" in marked["spec"]:
        marked["spec"]["replicas"] = f"@json {place}.replicas@"
    pod["containers"][0]["resources"] = f"@json {place}.resources@"
    for key in ("priorityClassName", "nodeSelector", "tolerations"):
        pod[key] = f"@{'json' if key in pod else 'with'} {place}.{key}@"
    pod["imagePullSecrets"] = "@with .Values.imagePullSecrets@"
    return marked


def _escaped(obj: Mapping[str, Any], workload: str) -> str:
    """Return the object as a template: its own braces are escaped, and values are filled in."""
    if workload:
        obj = _marked(obj, workload)
    text = yaml.safe_dump(dict(obj), sort_keys=False, width=10_000)
    text = text.replace("{{", "\0").replace("}}", "\1")
    text = text.replace("\0", '{{ "{{" }}').replace("\1", '{{ "}}" }}')
    text = text.replace(f"'{_CONFIG}'", _CONFIG).replace(_CONFIG, '{{ include "vgpu.config" . }}')
    given = '.Values.config | default (.Files.Get (printf "files/config-%s.yaml" .Values.mode))'
    text = text.replace("'@config@'", f"{{{{ {given} | toJson }}}}")
    lines: list[str] = []
    for line in text.splitlines():
        lines += _filled(line, lines)
    return "---\n" + "\n".join(lines) + "\n"


def _filled(line: str, before: Sequence[str]) -> list[str]:
    """Return the lines that fill values into a line of an object."""
    mark = _MARK.fullmatch(line)
    if mark is not None and mark["how"] == "json":
        return [f"{mark['head']}{mark['key']}: {{{{ {mark['value']} | toJson }}}}"]
    if mark is not None:
        field = f"{mark['head']}{mark['key']}: {{{{ toJson . }}}}"
        return [f"{{{{- with {mark['value']} }}}}", field, "{{- end }}"]
    head, separator, image = line.partition("image: ")
    name = _IMAGES.get(image.rpartition(":")[0])
    if separator and not head.strip(" -") and name is not None:
        value = 'include "vgpu.scheduler" .' if name == "scheduler" else f".Values.images.{name}"
        return [f"{head}image: {{{{ {value} | quote }}}}"]
    head, separator, anchor = line.partition(f"runbook_url: {_RUNBOOKS}#")
    if separator:
        return [f'{head}runbook_url: {{{{ printf "%s#{anchor}" .Values.runbooks | quote }}}}']
    head, separator, _ = line.partition(f"- {_DRIVER_ROOT}")
    if separator:
        argument = f'{head}- {{{{ printf "{_DRIVER_ROOT}%s" . | quote }}}}'
        roots = ["{{- range .Values.nodeagent.driverRoots }}", argument, "{{- end }}"]
        return [] if argument in before else roots
    for name, path in _KUBELET.items():
        if line.strip() == f"path: {path}":
            return [line.replace(path, f"{{{{ .Values.kubelet.{name} | quote }}}}")]
    return [line]


def write(folder: Path, version: str) -> None:
    """Write the chart into a folder, which is created."""
    for name, text in chart(version).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m release.chart FOLDER`."""
    parser = argparse.ArgumentParser(prog="python -m release.chart", description=__doc__)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    write(given.folder, project_version())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
