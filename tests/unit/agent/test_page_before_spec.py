"""A container's page holds its limits as long as its CDI spec exists."""

from __future__ import annotations

from pathlib import Path

from vgpu_nodeagent.enforcement.abi import PageState
from vgpu_nodeagent.enforcement.allocations import Allocations
from vgpu_nodeagent.enforcement.cdi import Edits, SpecFolder
from vgpu_nodeagent.enforcement.grants import ContainerGrant
from vgpu_nodeagent.enforcement.library import Library
from vgpu_nodeagent.enforcement.page import DeviceLimit, read_page

UUID = "GPU-00000000-0000-0000-0000-000000000000"
GRANT = ContainerGrant((DeviceLimit(UUID, 1 << 30, 50),), interposed=False)


class WatchedSpecs(SpecFolder):
    """A folder of specs that records the state of the page at each change of a spec."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "cdi")
        self.states: list[PageState] = []
        self._page = root / "slots" / "slot-1" / "limits"

    def write(self, allocation: str, edits: Edits) -> None:
        self.states.append(read_page(self._page).state)
        super().write(allocation, edits)

    def remove(self, allocation: str) -> None:
        self.states.append(read_page(self._page).state)
        super().remove(allocation)


def test_the_page_grants_before_there_is_a_spec_and_closes_before_it_goes(tmp_path: Path) -> None:
    specs = WatchedSpecs(tmp_path)
    allocations = Allocations(tmp_path / "slots", specs, library=Library("build", ()))
    allocations.create("slot-1")
    for end in (allocations.shut, allocations.close):
        allocations.open("slot-1", GRANT, nodes={UUID: ()})
        end("slot-1")
    assert specs.states == [PageState.GRANT, PageState.CLOSED] * 2
