"""HAMi's values file is read as a whole: what is about devices acts, and the rest is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vgpu_operator.cli.__main__ import main

VALUES = """
global: {imageRegistry: "", imagePullSecrets: []}
nameOverride: ""
resourceName: "acme.com/gpu"
resourceMem: "acme.com/gpumem"
dcuResourceName: "acme.com/dcunum"
schedulerName: hami-scheduler
admissionWebhook: {enabled: true}
scheduler:
  defaultSchedulerPolicy: {nodeSchedulerPolicy: spread, gpuSchedulerPolicy: binpack}
  leaderElect: true
devicePlugin:
  deviceSplitCount: 4
  deviceMemoryScaling: 2
  runtimeClassName: ""
devices:
  nvidia: {gpuCorePolicy: force}
  enflame: {enabled: false, customresources: [enflame.com/acme]}
"""
"""The sections that HAMi's chart has, in short."""


def test_the_values_of_hamis_chart_become_a_configuration_and_the_rest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(VALUES)
    assert main(["import", "hami", "-f", str(file)]) == 0
    out = capsys.readouterr().out
    shown = yaml.safe_load(out)
    assert shown["nvidia"]["resourceCountName"] == "acme.com/gpu"
    assert shown["nvidia"]["resourceMemoryName"] == "acme.com/gpumem"
    assert shown["nvidia"]["deviceSplitCount"] == 4
    assert float(shown["nvidia"]["deviceMemoryScaling"]) == 2
    assert shown["scheduling"]["nodePolicy"] == "Spread"
    for left in ("global", "schedulerName", "admissionWebhook", "devicePlugin.runtimeClassName",
                 "dcuResourceName", "devices.enflame.customresources"):  # fmt: skip
        assert f"# not carried over: {file}: {left}: " in out
    assert "pods that ask for acme.com/dcunum are served under the names" in out
    assert "pods that ask for enflame.com/acme are served under the names" in out


def test_a_wrong_value_in_it_is_refused_and_check_takes_the_file_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(VALUES)
    assert main(["check", "-f", str(file)]) == 0
    assert "the configuration is valid" in capsys.readouterr().out
    file.write_text(VALUES.replace("deviceSplitCount: 4", "deviceSplitCount: many"))
    assert main(["check", "-f", str(file)]) != 0
    assert "deviceSplitCount" in capsys.readouterr().err
