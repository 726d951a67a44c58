"""The configuration where it is mounted: a file, or the folder of one or several ConfigMaps.

in force ──look: another valid content──► new one in force (look returns it, once)
▲  └─────look: the content is wrong──► the old one stays in force (look raises, once)
└── look: nothing new, or the file cannot be read for a moment
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from vgpu_api.config.cluster import ClusterConfig, read_cluster_config
from vgpu_api.config.hami import Notice, parsed
from vgpu_api.errors import BadInput


def config_text(path: Path) -> str:
    """The document in a file; of a folder a ConfigMap whose data are its files.

    A folder is what a volume makes of ConfigMaps, HAMi's three among them: a file for each key.

    Raises:
        BadInput: a file is not text.
        OSError: it cannot be read.
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
    """The configuration in a YAML file or a folder of files; the defaults when there is none.

    Raises:
        BadInput: a file is not YAML, or something in it is wrong.
        OSError: it cannot be read.
    """
    if path is None:
        return ClusterConfig()
    return read_cluster_config(parsed(config_text(path), str(path)), report)


class ConfigFile:
    """A configuration that may change while it is in force.

    Args:
        path: Where it is mounted; None: the defaults, for ever.
        config: What was read there at first.
        report: Called for each key of a new configuration that does nothing.
        stands_in: `config` is not what is mounted, which was wrong: any right one is new.
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
        """The new configuration, whole and valid; None where the one in force stays.

        Raises:
            BadInput: the content is wrong; raised once for the same content.
        """
        if self._path is None:
            return None
        try:
            text = config_text(self._path)
        except OSError:
            return None  # links of the kubelet's change under a reader; it looks again soon
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
