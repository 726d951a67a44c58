"""The model of a vendor's table, which describes everything about the vendor's devices as data.

A table lists the resources and annotations of pods with their meaning, where a node registers its
devices, and which annotations the vendor's device plugin reads back. For anything that a table
cannot express, it names a rule: a pure function in a small registry of `vgpu_operator.vendors`.
`docs/development.md` explains how to add a vendor.

Source of the shipped tables: HAMi v2.10.0 (names and meanings).
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from vgpu_api.v1alpha1.vgpuclaim import AppClass, QosPolicy

ResourceName = Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=316)]
AnnotationKey = Annotated[
    str, Field(pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=316)
]
KindName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)]
Amount = Annotated[int, Field(ge=1, le=1 << 30)]

RecordRule: TypeAlias = Literal[
    "text",
    "first",
    "seconds",
    "nanoseconds",
    "sizes",
    "indexes",
    "node",
    "numbers",
    "coresWord",
    "containers",
    "partsByContainer",
    "firstIndex",
    "firstMinor",
    "firstSize",
]
"""The rules for annotations that a plugin reads back, in `vgpu_operator.vendors.records`."""


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        defer_build=True,  # all but one are only parts of others
    )


ChoiceRule: TypeAlias = Literal[
    "largestGroups", "pairs", "wings", "runs", "smallestGroups", "fewestOnline"
]
"""The rules for which devices go together, in `vgpu_operator.vendors.choices`."""
NodeRule: TypeAlias = Literal["fewestOnline", "linksKept"]
"""The rules that rank nodes, in `vgpu_operator.vendors.node_ranking`."""


class Size(_Part):
    """A size into which devices are divided, under the vendor driver's name."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    memory_mib: Amount
    """The memory of this size."""


class Sizes(_Part):
    """The fixed sizes into which devices are divided. A request is rounded up to one of them."""

    parts: Annotated[tuple[Size, ...], Field(min_length=1, max_length=16)]
    """The sizes, smallest first."""
    whole_mib: Amount
    """The memory of a whole device. A request gets a whole device if it sets no memory or more than
    the largest part. Several devices are never divided unless `several` is true.
    """
    most_mib: Amount
    """The largest memory that can be requested."""
    several: bool = False
    """True if parts of several devices can be requested."""
    one_size: bool = False
    """True if all parts of one device have the same size."""
    cores: bool = False
    """True if a part has the same share of its device's compute as of its memory."""
    write_whole: bool = True
    """True if admission writes the memory of a whole device into requests without memory."""

    @model_validator(mode="after")
    def _rising(self) -> Sizes:
        steps = [part.memory_mib for part in self.parts]
        if (
            steps != sorted(set(steps))
            or steps[-1] > self.whole_mib
            or self.whole_mib > self.most_mib
        ):
            raise ValueError("parts must grow in memory up to wholeMib, and that up to mostMib")
        return self


class Memory(_Part):
    """The resource by which pods request memory, and its meaning."""

    resource: ResourceName
    """The resource: an amount per device. If it is absent or 0, a request takes all memory of a
    device.
    """
    unit_mib: Amount = 1
    """The MiB in one unit. An amount with a binary suffix (`8Gi`) is always in bytes."""
    sizes: Sizes | None = None
    """The fixed sizes into which devices are divided, if any. Admission writes the size to which a
    request was rounded up.
    """
    amounts: tuple[Amount, ...] = ()
    """The only amounts that can be requested, in units; empty: any amount."""


class Cores(_Part):
    """The resource by which pods request compute, and its meaning."""

    resource: ResourceName
    """The resource: a percentage of each device."""
    more_is_all: bool = True
    """True if more than 100 counts as 100, false if it is refused."""
    default: Annotated[int, Field(ge=0, le=100)] = 0
    """The percentage for a container that requests none. 0 reserves nothing; 100 takes the whole
    device.
    """
    several: Annotated[int, Field(ge=1, le=100)] | None = None
    """The percentage of each device for a container with several devices, whatever it requests.
    Admission writes the total, as the vendor's plugin expects.
    """
    units: bool = False
    """True if the register lists compute units. A request is 1 to 100 percent of them and is
    recorded in units, rounded down. Devices with fewer than 100 units are not allocated, because
    one percent would be less than a unit.
    """


class NumberedCores(_Part):
    """Cores that are allocated by their numbers on the device."""

    resource: ResourceName
    """The resource: a number of cores, up to `each` of one device, or all cores of several devices.
    It replaces the count.
    """
    each: Literal[1, 2, 4]
    """The number of cores of a device that are allocated this way: its first ones, with equal
    shares.
    """


class Neighbours(_Part):
    """The pod annotations that decide which pods may share a device.

    A pod of class Online or Offline requests one device per container. Pods with a class share
    devices only with each other, and an Offline pod does not start beside an Online one. An Online
    pod reserves no compute. All other pods on a device must have the same policy.
    """

    app_class: AnnotationKey
    """The annotation with the class."""
    classes: dict[str, AppClass]
    """The annotation's values and the class for each. A pod without the annotation has no class."""
    qos_policy: AnnotationKey
    """The annotation with the policy for sharing compute. It is ignored for Online pods."""
    policies: dict[str, QosPolicy]
    """The annotation's values and the policy for each."""
    default_policy: str
    """The value for pods without the annotation, which admission writes."""
    links_first: AnnotationKey
    """The annotation that makes requests for whole devices prefer nodes where the fewest links are
    cut.
    """

    @model_validator(mode="after")
    def _default_is_a_policy(self) -> Neighbours:
        if self.default_policy not in self.policies:
            raise ValueError("defaultPolicy must be one of policies")
        return self


class Selection(_Part):
    """Pod annotations that select devices, each a comma-separated list. Exclusion wins."""

    use_types: AnnotationKey | None = None
    """Only types that contain one of these words; case is ignored."""
    exclude_types: AnnotationKey | None = None
    """No types that contain one of these words; case is ignored."""
    use_ids: AnnotationKey | None = None
    """Only these devices."""
    exclude_ids: AnnotationKey | None = None
    """None of these devices."""
    use_ids_too: AnnotationKey | None = None
    """Another name of `use_ids`. If a pod has both, devices must be in both lists."""
    exclude_ids_too: AnnotationKey | None = None
    """Another name of `exclude_ids`. If a pod has both, devices in either list are excluded."""


class Ring(_Part):
    """A label of nodes whose devices are linked in a ring."""

    label: AnnotationKey
    """The label."""
    has: Annotated[str, Field(min_length=1, max_length=63)]
    """A text that the value contains; case is ignored."""


class Capacity(_Part):
    """A rule that derives devices from a node's capacity: identical devices, numbered from 0."""

    resource: ResourceName
    """The resource from which the number of devices is derived."""
    each: Amount
    """The number of units of that resource per device."""
    memory: ResourceName | None = None
    """The resource with the total memory of all devices, in the unit of requests. None: the memory
    is unknown, so only whole devices are allocated.
    """
    id: Annotated[str, Field(pattern=r"^\{node\}-[A-Za-z0-9-]+-\{index\}$", max_length=63)]
    """The id of each device, composed of the node's name and the device's number."""
    slots: Annotated[int, Field(ge=1, le=1000)]
    """The most requests that a device can serve at a time."""
    cores: ResourceName | None = None
    """The resource with the total cores of all devices. None: each device has `each` units of
    compute.
    """
    ring: Ring | None = None
    """The nodes whose devices are linked in a ring."""


JsonKey: TypeAlias = Literal["id", "index", "count", "devmem", "devcore", "type", "numa", "health"]


class Register(_Part):
    """Where a node lists its devices: in an annotation, or in its capacity."""

    annotation: AnnotationKey | None = None
    """The annotation of the node that the vendor's device plugin writes."""
    form: Literal["fields", "json", "capacity", "parts"]
    """The form of the register.

    fields: `id,count,memory,cores,type,numa,health[,index,mode]:` for each device.

    json: a list of objects with `id count devmem devcore type numa health index`.

    capacity: no annotation; devices follow from the node's capacity (`capacity`).

    parts: an object with `devices`, each with `index minor capacity`, and `profiles`, which maps
    the name of a part, such as `3g.24gb`, to the plugin's id of it. All devices have all parts.
    """
    capacity: Capacity | None = None
    """For the format capacity."""
    id: (
        Annotated[str, Field(pattern=r"^\{node\}-[A-Za-z0-9-]+-\{index\}$", max_length=63)] | None
    ) = None
    """For the format parts: the id of each device."""
    group: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """For the format json: the key in an object's `custominfo` whose value groups devices. If any
    device lacks it, none are grouped.
    """
    group_when: dict[str, str] = Field(default_factory=dict)
    """Other values that an object's `custominfo` must have for the device to belong to a group."""
    keys: dict[JsonKey, str] = Field(default_factory=dict)
    """For the format json: other names of the keys. An empty name means that the register never has
    the key. Devices without an index get their position in the list.
    """
    zone: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """For the format json: the key with a number that linked devices share. 0 means no link."""
    alive: ResourceName | None = None
    """The resource that the kubelet offers while the plugin is connected; the default is the count.
    """

    @model_validator(mode="after")
    def _form_has_its_source(self) -> Register:
        if (self.form == "capacity") != (self.capacity is not None):
            raise ValueError("capacity must be set with the form capacity and with no other")
        if (self.form == "capacity") != (self.annotation is None):
            raise ValueError("annotation must be set with every form but capacity")
        if (self.form == "parts") != (self.id is not None):
            raise ValueError("id must be set with the form parts and with no other")
        return self


class Record(_Part):
    """One annotation that the vendor's device plugin reads back from the pod."""

    rule: RecordRule
    """The rule that writes the annotation."""
    value: str = ""
    """The text for the rule, if it needs one."""


class Mark(_Part):
    """The annotation by which a plugin finds the pod to serve, and which it changes afterwards."""

    annotation: AnnotationKey = "hami.io/bind-phase"
    """The annotation, written by the Binding."""
    value: Annotated[str, Field(min_length=1, max_length=63)] = "allocating"
    """The annotation's value until the pod is served."""


class Records(_Part):
    """The annotations that a Binding carries for the vendor's device plugin."""

    to_allocate: AnnotationKey | None = None
    """The devices of each container; the plugin removes those that it has allocated."""
    allocated: AnnotationKey
    """The devices of each container, permanently."""
    turn: Mark | None = None
    """The mark for a plugin that is not told which pod to serve and takes the pod with this mark.
    No pod is bound to a node while another pod there has the mark. None: the plugin finds its pod
    by other means.
    """
    more: dict[AnnotationKey, Record] = Field(default_factory=dict)
    """Further annotations, and the rule that writes each."""
    type: Literal["word", "model"] = "word"
    """The type of a device in records: the kind's word, or the registered model."""
    memory: Amount | None = None
    """The memory of a device in records, if requests take no memory."""


class Whole(_Part):
    """A whole device in the units of requests."""

    memory: Amount
    """The memory of a whole device."""
    cores: Annotated[int, Field(ge=1, le=100)]
    """The compute of a whole device."""


class Unsupported(_Part):
    """Resources and annotations that have an effect in HAMi and are refused here."""

    resources: tuple[ResourceName, ...] = ()
    """Resources that are refused unless their amount is 0."""
    annotations: dict[AnnotationKey, tuple[str, ...]] = Field(default_factory=dict)
    """Pod annotations with the refused values."""


class Kind(_Part):
    """Devices that are requested in the same way. A vendor has one kind, or one for each chip."""

    name: KindName
    """The kind's name in the `vendor` field of claims and devices."""
    word: Annotated[str, Field(min_length=1, max_length=63)]
    """The kind's name in HAMi's records."""
    count: ResourceName
    """The resource for the number of devices. A container without it requests no device."""
    memory: Memory | None = None
    """The request for memory. None: pods cannot request it."""
    cores: Cores | None = None
    """The request for compute. None: pods cannot request it."""
    numbered_cores: NumberedCores | None = None
    """The request for numbered cores. None: pods cannot request them."""
    counted: bool = False
    """True if a request takes a slot of a device and no memory."""
    alone: bool = False
    """True if a device serves one request at a time, with all of its compute."""
    whole_modules: bool = False
    """True if devices come in modules of two: one is rounded up to two, and other odd numbers are
    refused.
    """
    choice: ChoiceRule | None = None
    """The rule for which devices go together; None: any devices do."""
    group_mutex: bool = False
    """True if the policy `mutex` also excludes devices that are linked to one in use."""
    one_device: bool = False
    """True if all containers of a pod that request such devices share one device."""
    whole: Whole | None = None
    """The amounts of a whole device, for a kind that allocates whole devices if several or no
    memory are requested, whatever else is given. Admission writes the total, which the vendor's
    plugin counts.
    """
    counted_in: AnnotationKey | None = None
    """A pod annotation into which admission writes the number of devices, if a container requests
    several.
    """
    neighbours: Neighbours | None = None
    """The rules about pods that share a device. None: any pods may."""
    in_parts: bool = False
    """True if devices are allocated in parts that each node registers (the format parts). The count
    is the size of the requested part. A container may request memory or compute instead, and gets
    the smallest part with both. A container has one part.
    """
    unsupported: Unsupported = Unsupported()
    """Names that have an effect in HAMi and are refused here."""
    selection: Selection = Selection()
    """The pod annotations that select devices."""
    register_: Annotated[Register, Field(alias="register")]
    """Where nodes list their devices."""
    records: Records
    """The annotations that the vendor's device plugin reads back."""
    named_in: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=63)] | None = (
        None
    )
    """An environment variable that contains the name of each requesting container."""

    @model_validator(mode="after")
    def _amounts_go_together(self) -> Kind:
        if self.counted and self.memory is not None:
            raise ValueError("counted excludes memory: a request takes none")
        if self.alone and self.cores is not None:
            raise ValueError("alone excludes cores: a request takes all of them")
        if self.numbered_cores is not None and (self.cores is not None or not self.counted):
            raise ValueError("numberedCores requires counted, and excludes cores")
        if self.neighbours is not None and self.cores is None:
            raise ValueError("neighbours requires cores: an Online pod reserves none of them")
        if self.in_parts != (self.register_.form == "parts"):
            raise ValueError("inParts requires a register of the form parts")
        if self.in_parts and (self.memory is None or self.cores is None):
            raise ValueError("inParts requires memory and cores, by which a part may be requested")
        return self

    @property
    def one_size(self) -> bool:
        """Return True if all parts of a device of this kind have the same size."""
        return (
            self.memory is not None and self.memory.sizes is not None and self.memory.sizes.one_size
        )

    @property
    def resources(self) -> tuple[str, ...]:
        """Return the kind's resources, the count first."""
        parts = (self.memory, self.cores, self.numbered_cores)
        return (self.count, *(part.resource for part in parts if part is not None))

    @property
    def requested_by(self) -> tuple[str, ...]:
        """Return the resources that request a device, the count first."""
        if self.in_parts:
            return self.resources
        numbered = self.numbered_cores
        return (self.count,) if numbered is None else (self.count, numbered.resource)

    @property
    def annotations(self) -> frozenset[str]:
        """Return all pod annotations of the kind, for users and for the plugin."""
        chosen = self.selection.model_dump().values()
        records = self.records
        written = (records.allocated, records.to_allocate, *records.more, self.counted_in)
        return frozenset(key for key in (*chosen, *written, *self.of_neighbours) if key is not None)

    @property
    def of_neighbours(self) -> tuple[str, ...]:
        """Return the annotations about pods that share a device."""
        of = self.neighbours
        return () if of is None else (of.app_class, of.qos_policy, of.links_first)


class Vendor(_Part):
    """A vendor's table."""

    title: Annotated[str, Field(min_length=1, max_length=63)]
    """The name of the vendor."""
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1, max_length=32)]
    """The vendor's kinds of devices."""

    @model_validator(mode="after")
    def _words_mean_one_kind(self) -> Vendor:
        for what in ("name", "word", "count"):
            said = [getattr(kind, what) for kind in self.kinds]
            twice = sorted({text for text in said if said.count(text) > 1})
            if twice:
                raise ValueError(f"two kinds have the {what} {twice[0]}")
        return self
