"""The Helm chart, generated from the kustomize manifests: the same objects under conditions.

Each component of `manifests/components` is a value. kustomize builds the default overlay with and
without each; an object that a component adds, changes or removes is written once for each
combination of the components that touch it, in nested conditions. So the chart has no template that
could differ from the manifests, and a test compares both, object by object. `values.schema.json`
follows from the values, so Helm refuses a key that would have no effect.

`python -m release.chart FOLDER` writes it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
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
CONFIG = MANIFESTS / "base" / "config.yaml"

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
_HELPERS = """\
{{- /* A changed configuration has another name, so that a change of it rolls its readers. */ -}}
{{- define "vgpu.config" -}}
{{- if .Values.config }}vgpu-config-{{ .Values.config | sha256sum | trunc 10 }}{{ else }}%s{{ end }}
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
{{- if not .Values.scheduler.enabled }}

WARNING: scheduler.enabled is false. Pods that ask for GPUs wait until a kube-scheduler of yours
asks the operator's extender (manifests/examples/main-scheduler).
{{- end }}
{{- if and (semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version)
  (not .Values.components.agentsReadAllPods) }}

WARNING: this cluster runs Kubernetes {{ .Capabilities.KubeVersion.Version }}. Before 1.36 agents
cannot read their pods and are not ready without --set=components.agentsReadAllPods=true.
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
    default = kustomized(())
    name = _config_name(default)
    values = _values(default)
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
        "files/config.yaml": CONFIG.read_text(),
        "templates/_helpers.tpl": _HELPERS % name,
        "templates/NOTES.txt": _NOTES,
    }
    for key, variants in sorted(_variants(default).items()):
        _, kind, namespace, obj_name = key
        place = "-".join(
            filter(None, (kind.lower(), namespace, obj_name.replace(name, "vgpu-config")))
        )
        if kind == _CRD:
            files[f"crds/{obj_name}.yaml"] = yaml.safe_dump(dict(default[key]), sort_keys=False)
        else:
            files[f"templates/{place}.yaml"] = _template(key, variants, name)
    return files


@cache
def kustomized(components: Sequence[str]) -> Objects:
    """Return the objects that kustomize builds from the default overlay with these components.

    Raises:
        subprocess.CalledProcessError: The overlay does not build.
    """
    with tempfile.TemporaryDirectory() as folder:
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(MANIFESTS / "overlays" / "default", folder)],
            "components": [
                os.path.relpath(MANIFESTS / "components" / c, folder) for c in components
            ],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(document))
        built = subprocess.run(
            ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
        )
    return by_key(yaml.safe_load_all(built.stdout))


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
    images = {
        container["image"]
        for obj in default.values()
        for container in (
            obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
            if isinstance(obj.get("spec"), Mapping)
            else ()
        )
    }
    by_name = {_IMAGES[image.rpartition(":")[0]]: image for image in images}
    lines = ["# Images, each with tag or digest.", "images:"]
    lines += [f"  {name}: {by_name[name]}" for name in sorted(by_name)]
    lines += [
        "# A scheduler of its own for pods that ask for GPUs. false: the cluster's own asks the",
        "# extender (manifests/examples/main-scheduler).",
        "scheduler:",
        "  enabled: true",
        "# Folders of the kubelets on the hosts. A kubelet's --root-dir moves podResources and",
        "# pods, and not devicePlugins.",
        "kubelet:",
        *(f"  {name}: {path}" for name, path in _KUBELET.items()),
        "# The cluster's configuration as one text (docs/reference/configuration.md);",
        "# empty: files/config.yaml.",
        'config: ""',
        "# The page that alerts link to, published where you read it; each has a heading there.",
        f"runbooks: {_RUNBOOKS}",
        "# manifests/components; each folder has a word on what it does.",
        "components:",
    ]
    lines += [f"  {value_of(component)}: false" for component in COMPONENTS]
    return "\n".join(lines) + "\n"


def _schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of the chart's values, which allows only the keys of the defaults."""
    schema = _schema_of(values)
    # Helm gives this key to a chart that is part of another chart.
    schema["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


def _schema_of(value: Any) -> dict[str, Any]:
    """Return the schema of one value; its type follows from the default."""
    if isinstance(value, Mapping):
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: _schema_of(each) for key, each in value.items()},
        }
    if isinstance(value, bool):
        return {"type": "boolean"}
    if value.startswith("/"):
        return {"type": "string", "pattern": "^/"}
    # Without this, only the kubelet would notice an empty image; an empty configuration is the
    # default.
    return {"type": "string", "minLength": 1} if value else {"type": "string"}


_Variants: TypeAlias = Mapping[tuple[str, ...], Mapping[str, Any] | None]
"""An object for each set of those components that touch it; None where it is not there."""


def _variants(default: Objects) -> dict[Key, _Variants]:
    alone = {component: kustomized((component,)) for component in COMPONENTS}
    keys = set(default).union(*alone.values())
    found: dict[Key, _Variants] = {}
    for key in keys:
        touching = [c for c in COMPONENTS if alone[c].get(key) != default.get(key)]
        subsets = itertools.chain.from_iterable(
            itertools.combinations(touching, size) for size in range(len(touching) + 1)
        )
        found[key] = {subset: kustomized(subset).get(key) for subset in subsets}
    return found


def _template(key: Key, variants: _Variants, config: str) -> str:
    touching = max(variants, key=len)
    text = _conditional(touching, (), variants, config)
    if key in scheduler_objects():
        text = "{{- if .Values.scheduler.enabled }}\n" + text + "{{- end }}\n"
    return text


def _conditional(
    open_: Sequence[str], chosen: tuple[str, ...], variants: _Variants, config: str
) -> str:
    """Return nested conditions over the remaining components; the innermost has the object."""
    if not open_:
        obj = variants[tuple(sorted(chosen))]
        return "" if obj is None else _escaped(obj, config)
    component, *others = open_
    with_it = _conditional(others, (*chosen, component), variants, config)
    without = _conditional(others, chosen, variants, config)
    condition = f".Values.components.{value_of(component)}"
    if not without:
        return f"{{{{- if {condition} }}}}\n{with_it}{{{{- end }}}}\n"
    if not with_it:
        return f"{{{{- if not {condition} }}}}\n{without}{{{{- end }}}}\n"
    return f"{{{{- if {condition} }}}}\n{with_it}{{{{- else }}}}\n{without}{{{{- end }}}}\n"


def _escaped(obj: Mapping[str, Any], config: str) -> str:
    """Return the object as a template: its own braces are escaped, and values are filled in."""
    obj = dict(obj)
    is_config = obj["kind"] == "ConfigMap" and obj["metadata"]["name"] == config
    if is_config:
        obj["data"] = {"config.yaml": "@config@"}
    text = yaml.safe_dump(obj, sort_keys=False, width=10_000)
    text = text.replace("{{", "\0").replace("}}", "\1")
    text = text.replace("\0", '{{ "{{" }}').replace("\1", '{{ "}}" }}')
    text = text.replace(config, '{{ include "vgpu.config" . }}')
    if is_config:
        given = '.Values.config | default (.Files.Get "files/config.yaml") | toJson'
        text = text.replace("'@config@'", f"{{{{ {given} }}}}")
    lines = []
    for line in text.splitlines():
        head, separator, image = line.partition("image: ")
        name = _IMAGES.get(image.rpartition(":")[0])
        if separator and not head.strip(" -") and name is not None:
            line = f"{head}image: {{{{ .Values.images.{name} | quote }}}}"
        head, separator, anchor = line.partition(f"runbook_url: {_RUNBOOKS}#")
        if separator:
            line = f'{head}runbook_url: {{{{ printf "%s#{anchor}" .Values.runbooks | quote }}}}'
        for name, path in _KUBELET.items():
            if line.strip() == f"path: {path}":
                line = line.replace(path, f"{{{{ .Values.kubelet.{name} | quote }}}}")
        lines.append(line)
    return "---\n" + "\n".join(lines) + "\n"


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
