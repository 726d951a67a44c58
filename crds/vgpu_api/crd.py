"""The CustomResourceDefinitions. Schemas come from the models; columns and rules are listed here.

This module has the columns, short names, selectable fields and the rules about whole objects.
Everything about a single field is declared on the field of its model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from vgpu_api.names import GROUP, VERSION
from vgpu_api.schema import structural_schema
from vgpu_api.v1alpha1 import ApiModel, GPUDevice, VGPUClaim


@dataclass(frozen=True, slots=True)
class Column:
    """A printed column; `wide` columns appear only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return the column as an item of `additionalPrinterColumns`."""
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.wide:
            column["priority"] = 1
        return column


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule at the root of the schema.

    The API server prints `path: kind: message` and derives the kind from `reason`. If both are set,
    its refusals read like those of the webhook (docs/design/admission-and-kopf.md).
    """

    expression: str
    message: str
    path: str
    reason: str = "FieldValueInvalid"

    def to_wire(self) -> dict[str, str]:
        """Return the rule as an item of `x-kubernetes-validations`."""
        return {
            "rule": self.expression,
            "message": self.message,
            "fieldPath": self.path,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class CustomResource:
    """Everything that is needed to generate a CRD from a model."""

    model: type[ApiModel]
    plural: str
    singular: str
    short_names: tuple[str, ...]
    namespaced: bool
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...] = ()
    selectable: tuple[str, ...] = ()
    name: str = field(default="")

    def crd(self) -> dict[str, Any]:
        """Return the whole CustomResourceDefinition."""
        kind = self.model.__name__
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced" if self.namespaced else "Cluster",
                "names": {
                    "kind": kind,
                    "listKind": f"{kind}List",
                    "plural": self.plural,
                    "singular": self.singular,
                    "shortNames": list(self.short_names),
                    "categories": ["vgpu"],
                },
                "versions": [self._version()],
            },
        }

    def _version(self) -> dict[str, Any]:
        schema = structural_schema(self.model)
        # The API server defines metadata itself; a CRD may only declare its type.
        schema["properties"]["metadata"] = {"type": "object"}
        for known in ("apiVersion", "kind"):
            schema["properties"][known] = {"type": "string"}
        schema.pop("required", None)
        schema["required"] = ["spec"]
        if self.rules:
            schema["x-kubernetes-validations"] = [rule.to_wire() for rule in self.rules]
        version: dict[str, Any] = {
            "name": VERSION,
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "additionalPrinterColumns": [column.to_wire() for column in self.columns],
            "schema": {"openAPIV3Schema": schema},
        }
        if self.selectable:
            version["selectableFields"] = [{"jsonPath": path} for path in self.selectable]
        return version


def _same(old: str, new: str, name: str) -> str:
    """Return CEL for "an optional field did not change"."""
    before, after = f"{old}.{name}", f"{new}.{name}"
    return f"has({before}) == has({after}) && (!has({before}) || {before} == {after})"


def _same_or_default(old: str, new: str, name: str, default: str) -> str:
    """Return CEL for "a field did not change", where an absent field has its default.

    `.orValue` would be shorter, but the API server assumes the largest possible size for its result
    and then refuses the rule as too expensive.
    """
    before, after = f"{old}.{name}", f"{new}.{name}"
    return (
        f"(has({before}) && has({after}) ? {before} == {after} : "
        f"(!has({before}) || {before} == {default}) && (!has({after}) || {after} == {default}))"
    )


_FROZEN_IN_REQUEST = ("computePriority", "selector")
_DEFAULTS_IN_REQUEST = {
    "phase": "'App'",
    "count": "1",
    "vendor": "'nvidia'",
    "mode": "'Any'",
    "corePolicy": "'Default'",
}
"""The defaults as CEL, because list items are stored without their defaults
(docs/design/truth-and-ledger.md).
"""
_FROZEN_IN_SPEC = ("placement", "bindingMode", "schedulingPriority")
_NOT_ALLOCATED = "!has(oldSelf.status) || !has(oldSelf.status.allocation)"

CLAIM_RULES = (
    Rule(
        "self.spec.requests.all(r, !(has(r.memory) && has(r.memoryPercent)))",
        "give memory or memoryPercent, not both",
        ".spec.requests",
    ),
    Rule(
        f"{_NOT_ALLOCATED} || (self.spec.requests.size() == oldSelf.spec.requests.size() && "
        "self.spec.requests.all(r, oldSelf.spec.requests.exists(o, "
        + _same_or_default("o", "r", "name", "''")
        + "".join(
            f" && {_same_or_default('o', 'r', name, default)}"
            for name, default in _DEFAULTS_IN_REQUEST.items()
        )
        + "".join(f" && ({_same('o', 'r', name)})" for name in _FROZEN_IN_REQUEST)
        + ")))",
        "once allocated, only ttlSecondsAfterUnused and each request's memory, memoryPercent and "
        "cores can change",
        ".spec.requests",
        "FieldValueForbidden",
    ),
    Rule(
        f"{_NOT_ALLOCATED} || "
        "!self.spec.requests.exists(r, has(r.phase) && r.phase == 'Init') || "
        "self.spec.requests.map(r, has(r.name) ? r.name : '') == "
        "oldSelf.spec.requests.map(o, has(o.name) ? o.name : '')",
        "the order of requests among which are init containers' cannot change once the claim is "
        "allocated",
        ".spec.requests",
        "FieldValueForbidden",
    ),
    Rule(
        f"{_NOT_ALLOCATED} || ("
        + " && ".join(f"({_same('oldSelf.spec', 'self.spec', name)})" for name in _FROZEN_IN_SPEC)
        + ")",
        "placement, bindingMode and schedulingPriority cannot change once the claim is allocated",
        ".spec",
        "FieldValueForbidden",
    ),
)

KINDS = (
    CustomResource(
        model=GPUDevice,
        plural="gpudevices",
        singular="gpudevice",
        short_names=("gpudev",),
        namespaced=False,
        columns=(
            Column("NODE", ".spec.nodeName"),
            Column("INDEX", ".status.index", "integer"),
            Column("MODEL", ".status.model"),
            Column("MODE", ".spec.mode"),
            Column("MEM-USED", ".status.allocated.memory"),
            Column("MEM-TOTAL", ".status.allocatable.memory"),
            Column("CORES", ".status.allocated.cores", "integer"),
            Column("CLAIMS", ".status.allocated.slots", "integer"),
            Column("READY", '.status.conditions[?(@.type=="Ready")].status'),
            Column("AGE", ".metadata.creationTimestamp", "date"),
            Column("UUID", ".status.uuid", wide=True),
            Column("NUMA", ".status.numaNode", "integer", wide=True),
            Column("DRIVER", ".status.driverVersion", wide=True),
            Column("CORDONED", ".spec.cordoned", "boolean", wide=True),
        ),
        selectable=(".spec.nodeName",),
    ),
    CustomResource(
        model=VGPUClaim,
        plural="vgpuclaims",
        singular="vgpuclaim",
        short_names=("vgc",),
        namespaced=True,
        columns=(
            Column("STATE", ".status.state"),
            Column("REQUEST", ".status.summary"),
            Column("NODE", ".status.allocation.nodeName"),
            Column("POD", ".status.pod"),
            Column("PREPARED", '.status.conditions[?(@.type=="Prepared")].status'),
            Column("REASON", '.status.conditions[?(@.type=="Allocated")].reason'),
            Column("RESIZE", '.status.conditions[?(@.type=="Resized")].reason'),
            Column("AGE", ".metadata.creationTimestamp", "date"),
            Column("DEVICES", ".status.cards", wide=True),
            Column("MESSAGE", '.status.conditions[?(@.type=="Allocated")].message', wide=True),
        ),
        rules=CLAIM_RULES,
        selectable=(".status.allocation.nodeName",),
    ),
)


def crd_files() -> dict[str, str]:
    """Return the content of every file that `make crds` writes, by file name."""
    banner = "# Generated from crds/vgpu_api by `make crds`; do not edit.\n"
    files = {
        f"{GROUP}_{kind.plural}.yaml": banner
        + yaml.safe_dump(kind.crd(), sort_keys=False, width=100, allow_unicode=True)
        for kind in KINDS
    }
    files["kustomization.yaml"] = yaml.safe_dump(
        {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": sorted(files),
        },
        sort_keys=False,
    )
    return files
