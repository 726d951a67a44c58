"""Runs Prometheus' own promtool on the rules of a PrometheusRule."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from debian_packages import installed_program


def rule_file(folder: Path, rule: Mapping[str, Any]) -> str:
    """Write the rules of a PrometheusRule as Prometheus reads them; return the path."""
    path = folder / f"{rule['metadata']['name']}.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]))
    return str(path)


def promtool(*arguments: str) -> None:
    """Run promtool, which must find nothing wrong."""
    command = [installed_program("promtool", "prometheus"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run_cases(folder: Path, rule_files: Sequence[str], cases: Sequence[Mapping[str, Any]]) -> None:
    """Evaluate rules once a minute in test cases of promtool's form, and check each case."""
    path = folder / "cases.yaml"
    document = {"rule_files": [*rule_files], "evaluation_interval": "1m", "tests": [*cases]}
    path.write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(path))
