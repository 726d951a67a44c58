"""`kubectl vgpu version`: the version of this program, and that of the operator in the cluster.

The operator's version is a label of its Deployment. It is not read from the operator's metrics: for
those, the user would need access to the pods' network or the right to forward ports.
"""

from __future__ import annotations

from importlib.metadata import version

from vgpu_api.names import PART_OF_LABEL
from vgpu_client.api import Api
from vgpu_operator.cli.listing import CannotAnswer, listed
from vgpu_operator.cli.uninstall import DEPLOYMENTS

_LABEL = "app.kubernetes.io/version"
"""A label of every object of `manifests/base`, with the version of the package."""
_OPERATOR = f"{PART_OF_LABEL},app.kubernetes.io/component=operator"


async def operator_version(api: Api) -> str:
    """Return the version of the operator; several, joined by commas, if several are installed.

    Raises:
        CannotAnswer: No operator is installed.
        ClientError: The API server is unreachable or refuses the request.
    """
    found = (await listed(api, DEPLOYMENTS, selector=_OPERATOR)).items
    if not found:
        raise CannotAnswer(
            "no Deployment of the operator was found: vgpu is not installed; use --client to show "
            "only the version of this program"
        )
    labels = [each["metadata"].get("labels") or {} for each in found]
    return ", ".join(
        sorted({each.get(_LABEL) or f"unknown (no label {_LABEL})" for each in labels})
    )


def client_version() -> str:
    """Return the version of the installed package."""
    return version("vgpu")
