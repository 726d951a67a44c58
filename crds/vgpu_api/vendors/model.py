"""The model of a vendor's table, which holds all that is known of the vendor's devices as data.

A table has the resources and annotations by which pods ask, with their meaning, where a node
registers its devices, and which annotations the vendor's device plugin reads back. For what a table
cannot express it names a rule: a pure function in a small registry of `vgpu_operator.vendors`.
`docs/development.md` says how to add a vendor.

Source of the tables that are shipped: HAMi v2.10.0 (names and meanings).
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
"""How an annotation that a plugin reads back is made; `vgpu_operator.vendors.records` has them."""


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


ChoiceRule: TypeAlias = Literal[
    "largestGroups", "pairs", "wings", "runs", "smallestGroups", "fewestOnline"
]
"""Which of several devices that fit go together; `vgpu_operator.vendors.choices` has them."""
NodeRule: TypeAlias = Literal["fewestOnline", "linksKept"]
"""What counts before a node's use; `vgpu_operator.vendors.node_ranking` has them."""


class Size(_Part):
    """A size that a device is divided into, under the name that the vendor's driver uses."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    memory_mib: Amount
    """Its memory."""


class Sizes(_Part):
    """Parts that devices are divided into: no other can be had, so what is asked is rounded up."""

    parts: Annotated[tuple[Size, ...], Field(min_length=1, max_length=16)]
    """From the smallest to the largest."""
    whole_mib: Amount
    """Memory of a device that is not divided, of which none or more than the largest part is asked;
    several devices are never divided, but where `several` is true."""
    most_mib: Amount
    """More than this is refused."""
    several: bool = False
    """Parts of several devices may be asked for, too."""
    one_size: bool = False
    """All parts of one device are of one size."""
    cores: bool = False
    """A part has the same share of a device's compute as of its memory."""
    write_whole: bool = True
    """Admission writes the memory of a whole device where none is asked for."""

    @model_validator(mode="after")
    def _rising(self) -> Sizes:
        steps = [part.memory_mib for part in self.parts]
        if (
            steps != sorted(set(steps))
            or steps[-1] > self.whole_mib
            or self.whole_mib > self.most_mib
        ):
            raise ValueError("parts rise in memory, up to wholeMib, and that is at most mostMib")
        return self


class Memory(_Part):
    """How memory is asked for."""

    resource: ResourceName
    """Of each device. Without it, or with 0, a request takes all the memory of a device."""
    unit_mib: Amount = 1
    """MiB that one unit stands for. A size with a binary suffix (`8Gi`) is bytes all the same."""
    sizes: Sizes | None = None
    """Where devices are divided into named sizes. Admission writes the size that was rounded to."""
    amounts: tuple[Amount, ...] = ()
    """The only units that may be asked for; none: any."""


class Cores(_Part):
    """How compute is asked for."""

    resource: ResourceName
    """Percent of each device."""
    more_is_all: bool = True
    """More than 100 counts as 100; else it is refused."""
    default: Annotated[int, Field(ge=0, le=100)] = 0
    """Where a container asks for none. 0: nothing is reserved. 100: the device alone."""
    several: Annotated[int, Field(ge=1, le=100)] | None = None
    """Of each device where a container asks for several of them, whatever else it asks for.
    Admission writes the amount of all of them together, as the vendor's plugin expects."""
    units: bool = False
    """The register has how many compute units a device has. A request is 1 to 100 percent of them
    and is recorded as units, rounded down; devices of fewer than 100 units are not given, as a
    percent would be less than one."""


class NumberedCores(_Part):
    """Cores that are given by their numbers on the device."""

    resource: ResourceName
    """Cores: up to `each` of one device, or all that several devices give. It asks for devices
    as the count does, and instead of it."""
    each: Literal[1, 2, 4]
    """Cores of a device that are given so: its first ones, all of the same share."""


class Neighbours(_Part):
    """Pod annotations on which it depends beside which pods a device may serve one.

    A pod of the class Online or Offline asks for one device a container. Pods of a class share
    devices with such pods alone, and none of the class Offline starts beside one of Online. What
    an Online pod has reserves no compute; all others on a device have the same policy.
    """

    app_class: AnnotationKey
    """The class."""
    classes: dict[str, AppClass]
    """Its values, and the class of each. Without the annotation a pod has none."""
    qos_policy: AnnotationKey
    """The policy of a device's compute. Of an Online pod it is not read."""
    policies: dict[str, QosPolicy]
    """Its values, and the policy of each."""
    default_policy: str
    """The value where a pod has none; admission writes it."""
    links_first: AnnotationKey
    """True: a request for all compute of devices goes where the fewest links are cut."""

    @model_validator(mode="after")
    def _default_is_a_policy(self) -> Neighbours:
        if self.default_policy not in self.policies:
            raise ValueError("defaultPolicy is one of policies")
        return self


class Selection(_Part):
    """Pod annotations that choose devices, comma lists. Exclusion wins."""

    use_types: AnnotationKey | None = None
    """Only types that contain one of these words, whatever the case."""
    exclude_types: AnnotationKey | None = None
    """No type that contains one of these words."""
    use_ids: AnnotationKey | None = None
    """Only these devices."""
    exclude_ids: AnnotationKey | None = None
    """None of these devices."""
    use_ids_too: AnnotationKey | None = None
    """Another name of `use_ids`; where a pod has both, only devices that both name."""
    exclude_ids_too: AnnotationKey | None = None
    """Another name of `exclude_ids`; where a pod has both, none that one of them names."""


class Ring(_Part):
    """A label of nodes whose devices are linked in a ring."""

    label: AnnotationKey
    """Of the node."""
    has: Annotated[str, Field(min_length=1, max_length=63)]
    """A part of its value, whatever the case."""


class Capacity(_Part):
    """How devices follow from a node's status: all alike, numbered from 0."""

    resource: ResourceName
    """Of which each device has `each`; so it implies how many there are."""
    each: Amount
    """Units of it that one device has."""
    memory: ResourceName | None = None
    """Memory of all devices together, in the unit in which it is asked for. None: not known, and
    so not given away in parts."""
    id: Annotated[str, Field(pattern=r"^\{node\}-[A-Za-z0-9-]+-\{index\}$", max_length=63)]
    """What each is called, with the node's name and the device's number."""
    slots: Annotated[int, Field(ge=1, le=1000)]
    """Requests that each serves at most."""
    cores: ResourceName | None = None
    """Cores of all devices together. None: each has as many units of compute as `each`."""
    ring: Ring | None = None
    """Nodes whose devices are linked in a ring."""


JsonKey: TypeAlias = Literal["id", "index", "count", "devmem", "devcore", "type", "numa", "health"]


class Register(_Part):
    """Where a node lists its devices: in an annotation, or by its capacity."""

    annotation: AnnotationKey | None = None
    """Of the node, written by the vendor's device plugin."""
    form: Literal["fields", "json", "capacity", "parts"]
    """fields: `id,count,memory,cores,type,numa,health[,index,mode]:` for each device.
    json: a list of objects with `id count devmem devcore type numa health index`.
    capacity: no annotation; what `capacity` makes of the node's.
    parts: an object, `devices` with `index minor capacity`, and `profiles` from the name of a part,
    such as `3g.24gb`, to the id that the plugin has for it. All devices have all parts."""
    capacity: Capacity | None = None
    """With that form."""
    id: (
        Annotated[str, Field(pattern=r"^\{node\}-[A-Za-z0-9-]+-\{index\}$", max_length=63)] | None
    ) = None
    """With the form parts: what each device is called."""
    group: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """With the form json: the number or text in an object's `custominfo` that groups devices. Where
    one lacks it, none are grouped."""
    group_when: dict[str, str] = Field(default_factory=dict)
    """What an object's `custominfo` must have beside it, for the device to belong with others."""
    keys: dict[JsonKey, str] = Field(default_factory=dict)
    """With the form json: what the register calls `id` and the others, where that is not their own
    name; empty: it has no such thing. Devices without an index have their place in the list."""
    zone: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """With the form json: the number of an object that devices share which are linked; 0: none."""
    alive: ResourceName | None = None
    """What the kubelet offers as long as the plugin is connected; by default the count."""

    @model_validator(mode="after")
    def _form_has_its_source(self) -> Register:
        if (self.form == "capacity") != (self.capacity is not None):
            raise ValueError("capacity is given with the form capacity, and with no other")
        if (self.form == "capacity") != (self.annotation is None):
            raise ValueError("annotation is given with every form but capacity")
        if (self.form == "parts") != (self.id is not None):
            raise ValueError("id is given with the form parts, and with no other")
        return self


class Record(_Part):
    """One annotation that the vendor's device plugin reads back from the pod."""

    rule: RecordRule
    """How it is made."""
    value: str = ""
    """What the rule writes, where it needs telling."""


class Mark(_Part):
    """An annotation by which a plugin finds the pod that it serves, and which it changes then."""

    annotation: AnnotationKey = "hami.io/bind-phase"
    """Written by the Binding."""
    value: Annotated[str, Field(min_length=1, max_length=63)] = "allocating"
    """While the pod is not served."""


class Records(_Part):
    """The annotations that a Binding carries for the vendor's device plugin."""

    to_allocate: AnnotationKey | None = None
    """The devices of each container; the plugin takes off what it has handed out."""
    allocated: AnnotationKey
    """The devices of each container; stays."""
    turn: Mark | None = None
    """The plugin gets no pod's name and takes the pod with this mark: no pod is bound
    to a node while another there has it. None: it finds its pod by other means."""
    more: dict[AnnotationKey, Record] = Field(default_factory=dict)
    """Others, and the rule that makes each."""
    type: Literal["word", "model"] = "word"
    """What stands for the type of a device: the kind's word, or the model that is registered."""
    memory: Amount | None = None
    """What stands for the memory of a device, where a request takes none of it."""


class Whole(_Part):
    """What a whole device is, in the units in which memory and compute are asked for."""

    memory: Amount
    """Units of memory."""
    cores: Annotated[int, Field(ge=1, le=100)]
    """Units of compute."""


class Unsupported(_Part):
    """Words that act in HAMi and are not honoured here."""

    resources: tuple[ResourceName, ...] = ()
    """Refused unless 0 is asked of them."""
    annotations: dict[AnnotationKey, tuple[str, ...]] = Field(default_factory=dict)
    """Values of pod annotations that are refused."""


class Kind(_Part):
    """Devices that serve the same words. A vendor has one kind, or one for each chip."""

    name: KindName
    """In `vendor` of claims and of devices."""
    word: Annotated[str, Field(min_length=1, max_length=63)]
    """What HAMi's records call it."""
    count: ResourceName
    """How many devices; a container that asks for none of it asks for no device."""
    memory: Memory | None = None
    """None: it is not asked for."""
    cores: Cores | None = None
    """None: compute is not asked for."""
    numbered_cores: NumberedCores | None = None
    """Devices may be asked for by cores, of which the plugin reads the numbers."""
    counted: bool = False
    """A request takes a slot of a device, and nothing of its memory."""
    alone: bool = False
    """A device serves one request at a time, with all its compute."""
    whole_modules: bool = False
    """Devices come two to a module: one is rounded up to two, other odd numbers are refused."""
    choice: ChoiceRule | None = None
    """Which of several devices that fit go together."""
    group_mutex: bool = False
    """With the policy `mutex` no device is given while one that belongs with it is in use."""
    one_device: bool = False
    """All containers of a pod that ask for such devices share one."""
    whole: Whole | None = None
    """Devices are whole ones where several are asked for or no memory is, whatever else is given;
    admission writes the amounts of all of them together, which the vendor's plugin counts."""
    counted_in: AnnotationKey | None = None
    """A pod annotation in which admission writes how many devices a container asks for, if it asks
    for several."""
    neighbours: Neighbours | None = None
    """Whether a device may serve a pod depends on the pods that it serves already."""
    in_parts: bool = False
    """Devices are given in parts that each node registers (the form parts). The count is the size
    of the part that a container asks for; in place of it memory or compute may be asked for: the
    smallest part serves that has both. A container has one part."""
    unsupported: Unsupported = Unsupported()
    """What HAMi reads and is refused here by name."""
    selection: Selection = Selection()
    """Pod annotations that choose among devices."""
    register_: Annotated[Register, Field(alias="register")]
    """Where nodes list their devices."""
    records: Records
    """What the vendor's device plugin reads back."""
    named_in: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=63)] | None = (
        None
    )
    """An environment variable in which each asking container is to find its own name."""

    @model_validator(mode="after")
    def _amounts_go_together(self) -> Kind:
        if self.counted and self.memory is not None:
            raise ValueError("counted is without memory: nothing of it is taken")
        if self.alone and self.cores is not None:
            raise ValueError("alone is without cores: all of them are taken")
        if self.numbered_cores is not None and (self.cores is not None or not self.counted):
            raise ValueError("numberedCores is for counted devices, without cores")
        if self.neighbours is not None and self.cores is None:
            raise ValueError("neighbours is with cores: an Online pod reserves none of them")
        if self.in_parts != (self.register_.form == "parts"):
            raise ValueError("inParts goes with a register of the form parts")
        if self.in_parts and (self.memory is None or self.cores is None):
            raise ValueError("inParts is with memory and cores, for which a part may be asked")
        return self

    @property
    def one_size(self) -> bool:
        """Whether all parts of one of its devices are of one size."""
        return (
            self.memory is not None and self.memory.sizes is not None and self.memory.sizes.one_size
        )

    @property
    def resources(self) -> tuple[str, ...]:
        """Its resource names, the count first."""
        parts = (self.memory, self.cores, self.numbered_cores)
        return (self.count, *(part.resource for part in parts if part is not None))

    @property
    def requested_by(self) -> tuple[str, ...]:
        """The resources of which one must be asked for to get a device, the count first."""
        if self.in_parts:
            return self.resources
        numbered = self.numbered_cores
        return (self.count,) if numbered is None else (self.count, numbered.resource)

    @property
    def annotations(self) -> frozenset[str]:
        """Every annotation of a pod that it knows: chosen by users, or read back by the plugin."""
        chosen = self.selection.model_dump().values()
        records = self.records
        written = (records.allocated, records.to_allocate, *records.more, self.counted_in)
        return frozenset(key for key in (*chosen, *written, *self.of_neighbours) if key is not None)

    @property
    def of_neighbours(self) -> tuple[str, ...]:
        """The annotations about pods that share a device."""
        of = self.neighbours
        return () if of is None else (of.app_class, of.qos_policy, of.links_first)


class Vendor(_Part):
    """A vendor's table."""

    title: Annotated[str, Field(min_length=1, max_length=63)]
    """The vendor, for people."""
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1, max_length=32)]
    """Its kinds of devices."""

    @model_validator(mode="after")
    def _words_mean_one_kind(self) -> Vendor:
        for what in ("name", "word", "count"):
            said = [getattr(kind, what) for kind in self.kinds]
            twice = sorted({text for text in said if said.count(text) > 1})
            if twice:
                raise ValueError(f"two kinds have the {what} {twice[0]}")
        return self
