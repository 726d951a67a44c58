"""Validates configuration files and converts HAMi's.

The operator reads HAMi's documents directly. `import` is for people who want to see and keep the
equivalent configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from vgpu_api.config import ClusterConfig, Notice, read_cluster_config
from vgpu_api.errors import BadInput
from vgpu_operator.admission.rules.configuration import unlisted
from vgpu_operator.cli.foreign_parts import without_foreign_parts
from vgpu_operator.insight.documents import BadDocument, yaml_documents

ALL_DEFAULTS = "# every setting that is carried over has its default here\n{}\n"


def imported(files: Sequence[Path]) -> str:
    """Return the configuration in all files as one, with comments about settings that are lost.

    Parts that are no configuration, such as a Deployment of HAMi, are skipped with a comment.

    Raises:
        BadDocument: A file cannot be read, or a value in it is invalid. The message names the file
            and the path.
    """
    kept, lines = _read(files)
    return as_document(read_cluster_config(kept), lines)


def as_document(config: ClusterConfig, left: Sequence[str]) -> str:
    """Return a configuration as YAML, under comments about what is not carried over."""
    shown = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    comments = "".join(f"# not carried over: {line}\n" for line in left)
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True) if shown else ALL_DEFAULTS
    return comments + text


def checked(files: Sequence[Path]) -> str:
    """Validate each file on its own and return one line per finding.

    Raises:
        BadDocument: A file cannot be read, or a value in it is invalid. The message names the file
            and the path.
    """
    lines: list[str] = []
    for file in files:
        kept, findings = _read((file,))
        if not kept:
            raise BadDocument(f"{file}: no configuration found")
        lines += [f"{file}: the configuration is valid", *findings]
        if added := read_cluster_config(kept).added_resources():
            lines.append(f"{file}: {unlisted(added)}")
    return "".join(f"{line}\n" for line in lines)


def _read(files: Sequence[Path]) -> tuple[list[Any], list[str]]:
    """Return the documents with configurations, and one line for each part without effect."""
    kept: list[Any] = []
    lines: list[str] = []
    for file in files:
        for at, document in enumerate(yaml_documents(file)):
            left: list[str] = []
            notices: list[Notice] = []
            try:
                own = without_foreign_parts(document, left)
                read_cluster_config(own, notices.append)
            except BadInput as error:
                raise BadDocument(f"{file}: {error}") from error
            if own is None and document is not None:
                lines += [f"{file}[{at}]: {line}" for line in left]
                continue
            lines += [f"{file}: {line}" for line in (*left, *map(str, notices))]
            kept.append(own)
    return kept, lines
