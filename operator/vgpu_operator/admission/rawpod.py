"""A pod as the webhook gets it: JSON of any shape, read into the type or refused."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from vgpu_api.core import Pod
from vgpu_api.field_errors import describe
from vgpu_operator.admission.denial import Denied


def read_pod(raw: Any) -> Pod:
    """The pod in `raw`; null counts as absent, as everywhere in Kubernetes.

    Raises:
        Denied: it is no pod; names the field.
    """
    try:
        return Pod.model_validate(without_nulls(raw))
    except ValidationError as error:
        raise Denied(describe(error)) from error


def without_nulls(value: Any) -> Any:
    """The same JSON without the keys whose value is null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
