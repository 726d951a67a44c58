"""The webhook configurations of manifests/ for a cluster whose webhooks run on this machine."""

from __future__ import annotations

import base64
from typing import Any

import yaml

from vgpu_api.config import ClusterConfig
from vgpu_client.transport import Object
from vgpu_local.programs import ROOT

_FIRST = "'nvidia.com/gpu'"
_FOLDER = ROOT / "manifests" / "base" / "webhook"


def webhook_configurations(url: str, ca: bytes, settings: ClusterConfig) -> list[Object]:
    """Return the configurations that an administrator installs, with another URL and authority.

    Args:
        url: The URL of the webhooks.
        ca: The authority's certificate in PEM.
        settings: The cluster's configuration. Resource names that the default does not have are
            added in the places that install.md names.
    """
    expressions = yaml.safe_load((_FOLDER / "expressions.yaml").read_text())["data"]
    added = sorted(settings.managed_resources().keys() - ClusterConfig().managed_resources().keys())
    names = "".join(f", '{name}'" for name in added)
    expressions["asks"] = expressions["asks"].replace(_FIRST, f"{_FIRST}{names}", 1)
    documents = yaml.safe_load_all((_FOLDER / "configurations.yaml").read_text())
    configurations: list[Object] = list(documents)
    for configuration in configurations:
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            bundle = base64.b64encode(ca).decode()
            hook["clientConfig"] = {"url": f"{url}{path}", "caBundle": bundle}
            hook["matchConditions"] = _written(hook["matchConditions"], expressions)
    return configurations


def _written(conditions: list[Any], expressions: dict[str, str]) -> list[Any]:
    """Return the conditions with the names of expressions replaced as kustomize does it."""
    return [
        {
            **condition,
            "expression": expressions.get(condition["expression"], condition["expression"]),
        }
        for condition in conditions
    ]
