"""What every kind shares: camelCase on the wire, metadata, conditions.

The models are the source of the CRDs (see `vgpu_api.schema`): docstrings and field descriptions
become `kubectl explain`, and `json_schema_extra` carries what pydantic has no word for.
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
    """A value on the wire: camelCase there, snake_case here; fields we do not know are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def model_post_init(self, context: Any, /) -> None:
        """Keep the names of given fields once for all values that were given the same ones.

        Each value would have a set of its own, of up to 728 bytes, and a claim is seven values: a
        third of the memory that the objects of a large cluster take. No code adds to such a set:
        values are frozen, and a copy has its own.
        """
        given = _one_set(frozenset(self.__pydantic_fields_set__))
        _set(self, "__pydantic_fields_set__", given)

    def to_wire(self) -> dict[str, Any]:
        """The JSON object the API server sees: absent instead of null, defaults kept."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")

    def to_short_wire(self) -> dict[str, Any]:
        """As `to_wire`, without what is read where a field is absent."""
        return self.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True, mode="json")


_set = object.__setattr__


@lru_cache(maxsize=4096)
def _one_set(names: frozenset[str]) -> set[str]:
    return set(names)


_LONGEST = 1 << 10


def one_for_equals(*, kept: int = 1 << 10) -> WrapValidator:
    """Reads equal JSON of a small value as one object, for the fields that are marked with it.

    Values are frozen, so sharing is safe. Each device has a link to each other device of its node
    and the amounts of its model, and the pods of a Deployment ask for the same: without this they
    are a third of the memory that the objects of a large cluster take.

    Args:
        kept: So many different values are remembered, whether or not an object still has them.
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
"""A text that many objects have in common: it is kept once, as long as one of them has it."""


class OwnerReference(ApiModel):
    """Who owns the object: it goes when the owner goes."""

    api_version: Word = ""
    kind: Word = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(ApiModel):
    """The part of an object's metadata that we read."""

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
"""A moment by RFC 3339."""


def _unset_time(value: object) -> object:
    """The API server writes an unset time as null."""
    return "" if value is None else value


class Condition(ApiModel):
    """One aspect of the object's state."""

    type: Annotated[Word, Field(max_length=64)]
    """What the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[Word, Field(max_length=128)] = ""
    """One CamelCase word for why."""
    message: Annotated[Word, Field(max_length=4096)] = ""
    """The same for people."""
    last_transition_time: Annotated[Word, Field(max_length=64), BeforeValidator(_unset_time)] = ""
    """When `status` changed last (RFC 3339)."""
    observed_generation: int | None = None
    """The generation of the spec that was read."""


ONE_OF_EACH_TYPE = Field(
    default_factory=no_items,
    max_length=16,
    json_schema_extra={"x-kubernetes-list-type": "map", ListMap: ["type"]},
)
"""What a list of conditions is, as a field."""
Conditions = Annotated[list[Condition], ONE_OF_EACH_TYPE]
