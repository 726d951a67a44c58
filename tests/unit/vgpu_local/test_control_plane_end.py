"""Nothing is left of a control plane that failed to start."""

from pathlib import Path

import pytest

from vgpu_local.control_plane import ControlPlane


def test_a_control_plane_that_never_started_removes_nothing_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("not yours")
    monkeypatch.chdir(tmp_path)
    plane = ControlPlane()
    plane.programs = tmp_path / "not-built"

    with pytest.raises(RuntimeError, match="make control-plane"):
        plane.start()
    plane.stop()

    assert mine.read_text() == "not yours"
