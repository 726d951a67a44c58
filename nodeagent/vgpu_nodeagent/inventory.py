"""The cards of this node and on which terms they are given away.

A card that was seen once stays known: when it falls off the bus its object says so, and what
runs on it keeps counting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from vgpu_api.config import NodeTerms, NvidiaConfig
from vgpu_api.effective import Use
from vgpu_api.v1alpha1 import GPUDeviceSpec
from vgpu_nodeagent.drivers.base import Driver, PhysicalDevice
from vgpu_nodeagent.errors import DriverUnavailable

logger = logging.getLogger(__name__)

CARD_CORES = 100
_LOOK_S = 15.0
_UUID_MOST = 128
_MEMORY_MOST_MIB = 64 << 20
"""64 TiB."""
_SLICES_MOST = 64
_WORDS_MOST = {"model": 128, "driver's version": 64, "CUDA version": 64, "bus id": 64}
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """What of a card is given away, and how.

    Attributes:
        capacity: What the card has.
        allocatable: What may be given away: capacity times the scaling factors.
        core_policy: When compute shares are enforced, where a request does not say.
        is_cut: The card is in MIG mode: it is given in instances only.
        is_static: They are an administrator's: none is made or removed.
    """

    capacity: Use
    allocatable: Use
    core_policy: str = "Default"
    is_cut: bool = False
    is_static: bool = False


def is_static(card: PhysicalDevice, spec: GPUDeviceSpec | None, config: NvidiaConfig) -> bool:
    """Whether a card's instances are given as an administrator made them."""
    wanted = spec.mig_instances if spec is not None else None
    return card.mig_enabled and (
        wanted == "Static" if wanted is not None else config.mig_strategy != "none"
    )


def terms_of(
    card: PhysicalDevice, spec: GPUDeviceSpec | None, config: NvidiaConfig
) -> DeviceCapacity:
    """The administrator's wishes for this card, or the configuration where there are none."""
    slots = spec.slots if spec is not None and spec.slots is not None else config.device_split_count
    memory = spec.memory_scaling if spec is not None else None
    cores = spec.core_scaling if spec is not None else None
    memory_factor = Fraction(memory or str(config.device_memory_scaling))
    core_factor = Fraction(cores or str(config.device_core_scaling))
    return DeviceCapacity(
        capacity=Use(card.memory_mib, CARD_CORES, slots),
        allocatable=Use(int(card.memory_mib * memory_factor), int(CARD_CORES * core_factor), slots),
        core_policy=spec.core_policy if spec is not None else "Default",
        is_cut=card.mig_enabled,
        is_static=is_static(card, spec, config),
    )


class Inventory:
    """The cards known, which of them are present, and whether the driver answers.

    Args:
        driver: Whose cards.
        config: What the administrator said of all of them.
        own_places: Where instances of ours may lie now: card and first memory slice. Where others
            lie, nothing can be made.
    """

    def __init__(
        self,
        driver: Driver,
        config: NvidiaConfig,
        *,
        own_places: Callable[[], frozenset[tuple[str, int]]] = frozenset,
    ) -> None:
        self._own_places = own_places
        self._look_wanted = asyncio.Event()
        self._driver = driver
        self._config = NodeTerms(config)
        self._known: dict[str, PhysicalDevice] = {}
        self._reported: set[str] = set()
        self._faults: dict[str, str] = {}
        self._present: frozenset[str] = frozenset()
        self._specs: dict[str, GPUDeviceSpec] = {}
        self._on_change: list[Callable[[], None]] = []
        self.driver_error: str | None = "the driver has not been asked yet"

    @property
    def vendor(self) -> str:
        """Whose cards."""
        return self._driver.vendor

    @property
    def cards(self) -> Mapping[str, PhysicalDevice]:
        """Every card ever seen, by UUID."""
        return self._known

    def is_present(self, uuid: str) -> bool:
        """Whether the driver shows the card now."""
        return self.driver_error is None and uuid in self._present

    @property
    def present(self) -> Mapping[str, PhysicalDevice]:
        """The cards that the driver shows now, by UUID."""
        return {uuid: card for uuid, card in self._known.items() if self.is_present(uuid)}

    def terms(self) -> Mapping[str, DeviceCapacity]:
        """On which terms each known card is given away."""
        return {
            uuid: terms_of(card, self._specs.get(uuid), self._config.nvidia)
            for uuid, card in self._known.items()
        }

    def configure(self, terms: NodeTerms) -> None:
        """Take what the configuration has for this very node, before its devices are shown."""
        self._config = terms

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever anything here has changed."""
        self._on_change.append(callback)

    def set_spec(self, uuid: str, spec: GPUDeviceSpec) -> None:
        """Take the administrator's wishes for a card; they outlive its API object."""
        before = self._specs.get(uuid)
        if before != spec:
            self._specs[uuid] = spec
            if (before.mig_instances if before is not None else None) != spec.mig_instances:
                self.look_soon()  # what can be given of the card is another now
            self._tell()

    def look_soon(self) -> None:
        """What cards are cut into or need has changed."""
        self._look_wanted.set()

    async def look_again(self) -> None:
        """Refresh when that is wanted, and every now and then."""
        try:
            async with asyncio.timeout(_LOOK_S):  # wait_for may swallow being cancelled
                await self._look_wanted.wait()
        except TimeoutError:
            pass
        self._look_wanted.clear()
        await self.refresh()

    async def refresh(self) -> None:
        """Ask the driver for its cards. A driver that does not answer is a state, not an error."""
        before = (dict(self._known), self._present, self.driver_error)
        own = self._own_places()
        try:
            cards = await self._driver.cards()
        except DriverUnavailable as error:
            self.driver_error = str(error)
        else:
            self.driver_error = None
            cards = self._believable(cards)
            self._present = frozenset(card.uuid for card in cards)
            own |= self._own_places()  # made or removed while the driver was asked: ours
            self._known.update({card.uuid: self._with_places(card, own) for card in cards})
            self._offer_only_alike()
        if (self._known, self._present, self.driver_error) != before:
            logger.info(
                "%d of %d cards present%s",
                len(self._present),
                len(self._known),
                f"; driver: {self.driver_error}" if self.driver_error else "",
            )
            self._tell()

    def fault(self, uuid: str) -> str:
        """Why nothing of a static card is offered that has instances; empty if it is."""
        return self._faults.get(uuid, "")

    def is_static(self, uuid: str) -> bool:
        """Whether a card's instances are an administrator's."""
        card = self._known.get(uuid)
        return card is not None and is_static(card, self._specs.get(uuid), self._config.nvidia)

    def _with_places(self, card: PhysicalDevice, own: frozenset[tuple[str, int]]) -> PhysicalDevice:
        """A card with the profiles that may be used, and for each the places where one may lie."""
        if is_static(card, self._specs.get(card.uuid), self._config.nvidia):
            return self._with_usable_profiles(_as_it_is(card, own))
        on_demand = tuple(profile for profile in card.mig_profiles if not profile.has_extras)
        free = _with_free_places(replace(card, mig_profiles=on_demand), own)
        return self._with_usable_profiles(free)

    def _offer_only_alike(self) -> None:
        """Under `single` a pod asks for any instance: they are of one size, or none is offered."""
        self._faults = {}
        if self._config.nvidia.mig_strategy != "single":
            return
        static = [card for uuid, card in self._known.items() if self.is_static(uuid)]
        kinds = sorted({profile.name for card in static for profile in card.mig_profiles})
        if len(kinds) < 2:
            return
        fault = (
            f"migStrategy single needs MIG instances of one profile on the node, and there are "
            f"{', '.join(kinds)}: none is offered"
        )
        for card in static:
            self._faults[card.uuid] = fault
            self._known[card.uuid] = replace(card, mig_profiles=())
        self._say_once(fault, level=logging.ERROR)

    def _believable(self, cards: Iterable[PhysicalDevice]) -> tuple[PhysicalDevice, ...]:
        """The driver's cards, but for nonsense: such a card stays as it was known, or unknown."""
        found: dict[str, PhysicalDevice] = {}
        for card in cards:
            if self._config.leaves_out(card.uuid, card.index):
                self._say_once(f"card {card.index} ({card.uuid}) is left out: filterDevices")
                continue
            why = _nonsense(card) or ("another card has that UUID" if card.uuid in found else "")
            if why:
                self._say_once(
                    f"card {card.index} ({card.uuid or 'no UUID'}): {why}; it is ignored",
                    level=logging.ERROR,
                )
                known = self._known.get(card.uuid)
                if known is not None and card.uuid not in found:
                    found[card.uuid] = known
                continue
            found[card.uuid] = card
        return tuple(found.values())

    def _say_once(self, sentence: str, *, level: int = logging.INFO) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            logger.log(level, "%s", sentence)

    def _with_usable_profiles(self, card: PhysicalDevice) -> PhysicalDevice:
        """A card with the MIG profiles that the configuration allows."""
        usable = self._config.nvidia.usable_profiles(
            card.model, (profile.name for profile in card.mig_profiles)
        )
        kept = tuple(profile for profile in card.mig_profiles if profile.name in usable)
        return card if len(kept) == len(card.mig_profiles) else replace(card, mig_profiles=kept)

    def _tell(self) -> None:
        for callback in self._on_change:
            callback()


def _nonsense(card: PhysicalDevice) -> str:
    """What of a card cannot be; empty if all of it can."""
    if not 0 < len(card.uuid) <= _UUID_MOST or not card.uuid.isprintable():
        return "its UUID cannot be one"
    if not 0 < card.memory_mib <= _MEMORY_MOST_MIB:
        return f"its memory cannot be {card.memory_mib} MiB"
    if card.index < 0 or card.minor < 0:
        return f"its numbers cannot be {card.index} and {card.minor}"
    for what, words in _words_of(card).items():
        if len(words) > _WORDS_MOST[what] or not words.isprintable():
            return f"its {what} cannot be {words[:_SHOWN]!r}"
    return _nonsense_of_instances(card)


def _words_of(card: PhysicalDevice) -> dict[str, str]:
    """What the driver says of a card in words of its own; `_WORDS_MOST` long at most."""
    return {
        "model": card.model,
        "driver's version": card.driver_version,
        "CUDA version": card.runtime_version,
        "bus id": card.pci_bus_id,
    }


def _nonsense_of_instances(card: PhysicalDevice) -> str:
    """What of a card's MIG profiles and instances cannot be: slices are the bits of a number."""
    placed = [(p.name, *place) for p in card.mig_profiles for place in p.places]
    placed += [(i.profile, i.start, i.size) for i in card.mig_instances]
    for name, start, size in placed:
        if not 0 <= start < _SLICES_MOST or not 0 < size <= _SLICES_MOST:
            return f"its MIG profile {name[:_SHOWN]!r} cannot lie at slice {start}, {size} long"
    for profile in card.mig_profiles:
        is_possible = 0 < profile.memory_mib <= _MEMORY_MOST_MIB
        if not is_possible or not 0 <= profile.cores <= CARD_CORES:
            return (
                f"its MIG profile {profile.name[:_SHOWN]!r} cannot have {profile.memory_mib} MiB "
                f"and {profile.cores} % of compute"
            )
    return ""


def _as_it_is(card: PhysicalDevice, own: frozenset[tuple[str, int]]) -> PhysicalDevice:
    """A card whose profiles have the places where programs can use an administrator's instance."""
    there = [i for i in card.mig_instances if i.uuid and (card.uuid, i.start) not in own]
    profiles = (
        replace(
            profile,
            places=tuple((i.start, i.size) for i in there if i.profile == profile.name),
        )
        for profile in card.mig_profiles
    )
    return replace(card, mig_profiles=tuple(profile for profile in profiles if profile.places))


def _with_free_places(card: PhysicalDevice, own: frozenset[tuple[str, int]]) -> PhysicalDevice:
    """A card whose profiles have no places where an instance lies that is not ours."""
    others = [i for i in card.mig_instances if (card.uuid, i.start) not in own]
    if not others:
        return card
    free = [
        replace(
            profile,
            places=tuple(
                place
                for place in profile.places
                if not any(other.overlaps(*place) for other in others)
            ),
        )
        for profile in card.mig_profiles
    ]
    return replace(card, mig_profiles=tuple(free))
