from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from vgpu_local.kubelet.folders import SOCKET_PATH_MAX, make_folders


@pytest.mark.parametrize("temporary", ["short", "long"])
def test_sockets_of_a_deep_run_folder_are_bound_through_a_short_path_that_goes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: str
):
    deep = tmp_path / ("x" * 90)
    if temporary == "long":
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folders = make_folders(deep / "node")
    assert len(bytes(folders.device_plugins / ("x" * 40))) <= SOCKET_PATH_MAX
    (folders.device_plugins / "file").touch()
    assert (deep / "node" / "device-plugins" / "file").exists()
    assert folders.link is not None
    folders.remove_link()
    assert not folders.link.exists()
    assert (deep / "node" / "device-plugins" / "file").exists()


def test_a_short_run_folder_needs_no_link():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        folders = make_folders(Path(folder) / "n")
        assert folders.link is None
        assert folders.sockets == folders.root
