"""The parts that all kinds share: camelCase on the wire, metadata and conditions.

The CRDs are generated from the models (see `vgpu_api.schema`). Docstrings and field descriptions
become the text of `kubectl explain`, and `json_schema_extra` has what pydantic cannot express.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.alias_generators import to_camel

from vgpu_api.empties import no_entries, no_items
from vgpu_api.quantity import SIZE_PATTERN

ListMap = "x-kubernetes-list-map-keys"


class ApiModel(BaseModel):
    """A value on the wire: camelCase there, snake_case here. Unknown fields are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        # A model's validator is built when it is first used. Most models are only parts of others,
        # and no process uses all the rest.
        defer_build=True,
    )

    def model_post_init(self, context: Any, /) -> None:
        """Share one set of field names among all values on which the same fields are set.

        Otherwise each value would have its own set of up to 728 bytes, and a claim consists of
        seven
        values: a third of the memory that the objects of a large cluster take. Sharing is safe
        because values are frozen and a copy gets its own set.
        """
        given = _one_set(frozenset(self.__pydantic_fields_set__))
        _set(self, "__pydantic_fields_set__", given)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object for the API server: None is left out, defaults are kept."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")

    def to_short_wire(self) -> dict[str, Any]:
        """Return it like `to_wire`, without fields that have their default."""
        return self.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True, mode="json")


_set = object.__setattr__


@lru_cache(maxsize=4096)
def _one_set(names: frozenset[str]) -> set[str]:
    return set(names)


_LONGEST = 1 << 10


def one_for_equals(*, kept: int = 1 << 10) -> WrapValidator:
    """Parse equal JSON of a small value to one shared object, for the fields marked with it.

    Values are frozen, so sharing is safe. Each device has a link to each other device of its node
    and the amounts of its model, and the pods of a Deployment ask for the same. Without sharing,
    these values are a third of the memory that the objects of a large cluster take.

    Args:
        kept: The number of different values to remember, whether they are still in use or not.
    """
    known: dict[str, Any] = {}

    def read(raw: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if type(raw) is not dict:
            return handler(raw)
        key = repr(raw)
        if len(key) > _LONGEST:
            return handler(raw)
        found = known.get(key)
        if found is None:
            if len(known) >= kept:
                known.clear()
            found = known[key] = handler(raw)
        return found

    return WrapValidator(read)


Word = Annotated[str, AfterValidator(sys.intern)]
"""A text that many objects share: it is kept once, as long as one of them uses it."""


class OwnerReference(ApiModel):
    """The owner of the object; the object is deleted with it."""

    api_version: Word = ""
    kind: Word = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


def version_of(resource_version: str) -> int:
    """Return a resourceVersion as a number, which orders the versions of one kind."""
    return int(resource_version or 0)


class Metadata(ApiModel):
    """The object metadata that we read."""

    name: str = ""
    namespace: Word | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Word | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=no_entries)
    annotations: dict[str, str] = Field(default_factory=no_entries)
    finalizers: list[str] = Field(default_factory=no_items)
    owner_references: list[OwnerReference] = Field(default_factory=no_items)


Name = Annotated[str, Field(max_length=253)]
Size = Annotated[
    str,
    Field(max_length=32, pattern=SIZE_PATTERN),
]
"""A Kubernetes quantity of bytes, such as 8Gi or 8192Mi."""
Percent = Annotated[int, Field(ge=0, le=100)]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
"""A time in RFC 3339."""


def _unset_time(value: object) -> object:
    """Turn null into an empty string: the API server writes an unset time as null."""
    return "" if value is None else value


class Condition(ApiModel):
    """One aspect of the object's state."""

    type: Annotated[Word, Field(max_length=64)]
    """The aspect that the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: Annotated[Word, Field(max_length=128)] = ""
    """The reason for the status, one CamelCase word."""
    message: Annotated[Word, Field(max_length=4096)] = ""
    """An explanation for people."""
    last_transition_time: Annotated[Word, Field(max_length=64), BeforeValidator(_unset_time)] = ""
    """The time when `status` last changed (RFC 3339)."""
    observed_generation: int | None = None
    """The generation of the spec that the condition is about."""


ONE_OF_EACH_TYPE = Field(
    default_factory=no_items,
    max_length=16,
    json_schema_extra={"x-kubernetes-list-type": "map", ListMap: ["type"]},
)
"""The declaration of a field that holds conditions."""
Conditions = Annotated[list[Condition], ONE_OF_EACH_TYPE]
