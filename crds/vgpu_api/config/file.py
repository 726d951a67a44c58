"""The configuration as it is mounted: a file, or a folder of one or more ConfigMaps.

in force ──look: changed and valid──► the new one is in force (look returns it, once)
▲  └─────look: the content is wrong──► the old one stays in force (look raises, once)
└── look: no change, or the file cannot be read at the moment
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from vgpu_api.config.cluster import ClusterConfig, read_cluster_config
from vgpu_api.config.hami import Notice, parsed
from vgpu_api.errors import BadInput


def config_text(path: Path) -> str:
    """Return the document in a file; a folder is read as a ConfigMap whose data are its files.

    A volume made of ConfigMaps, HAMi's three among them, has one file for each key.

    Raises:
        BadInput: A file is not text.
        OSError: A file cannot be read.
    """
    try:
        if not path.is_dir():
            return path.read_text()
        # The kubelet's own folders begin with two dots; the keys are links into them.
        files = sorted(child for child in path.iterdir() if not child.name.startswith(".."))
        data = {child.name: child.read_text() for child in files if child.is_file()}
    except UnicodeDecodeError as error:
        raise BadInput(field=str(path), value=str(error), expected="a YAML document") from error
    return yaml.safe_dump({"kind": "ConfigMap", "data": data})


def load_cluster_config(
    path: Path | None, report: Callable[[Notice], None] | None = None
) -> ClusterConfig:
    """Load the configuration from a YAML file or a folder of files; the defaults if there is none.

    Raises:
        BadInput: A file is not YAML, or a value in it is wrong.
        OSError: A file cannot be read.
    """
    if path is None:
        return ClusterConfig()
    return read_cluster_config(parsed(config_text(path), str(path)), report)


class ConfigFile:
    """A configuration that may change while the process runs.

    Args:
        path: Where it is mounted. None: the defaults, which never change.
        config: The configuration that was first read from there.
        report: Called for each key of a new configuration that has no effect.
        stands_in: `config` replaces a mounted document that was wrong, so any valid one is new.
    """

    def __init__(
        self,
        path: Path | None,
        config: ClusterConfig,
        report: Callable[[Notice], None] | None = None,
        *,
        stands_in: bool = False,
    ) -> None:
        self.config = config
        self._path = path
        self._report = report
        self._stands_in = stands_in
        self._seen: str | None = None

    def look(self) -> ClusterConfig | None:
        """Return the new configuration if there is a valid one, else None.

        Raises:
            BadInput: The content is wrong; raised once for the same content.
        """
        if self._path is None:
            return None
        try:
            text = config_text(self._path)
        except OSError:
            return None  # the kubelet is swapping its links; the next look reads them
        if text == self._seen:
            return None
        self._seen = text
        notices: list[Notice] = []
        config = read_cluster_config(parsed(text, str(self._path)), notices.append)
        if config == self.config and not self._stands_in:
            return None
        self._stands_in = False
        self.config = config
        if self._report is not None:
            for notice in notices:
                self._report(notice)
        return config
