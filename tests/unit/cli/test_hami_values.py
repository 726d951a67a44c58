"""HAMi's values file is read completely: settings of devices act, and the others are named."""

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
mluResourceName: "cambricon.com/vmlu"
schedulerName: acme-scheduler
scheduler:
  defaultSchedulerPolicy: {nodeSchedulerPolicy: spread, gpuSchedulerPolicy: binpack}
  leaderElect: true
  admissionWebhook: {enabled: true, whitelistNamespaces: [istio-system]}
devicePlugin:
  deviceSplitCount: 4
  deviceMemoryScaling: 2
  runtimeClassName: nvidia
  tolerations: []
  nodeConfiguration:
    config: |
      {"nodeconfig": [{"name": "your-node-name"}, {"name": "n1", "devicesplitcount": 5}]}
    externalConfigName: "by-hand"
devices:
  nvidia: {gpuCorePolicy: force}
  enflame: {enabled: false, customresources: [enflame.com/acme, enflame.com/gcu-memory]}
device-config: {content: ""}
"""
"""The sections that HAMi's chart has, in short."""
CONTENT = """
device-config:
  content: |
    nvidia: {deviceSplitCount: 7, defaultCores: 10}
"""


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
    assert shown["nvidia"]["runtimeClassName"] == "nvidia"
    assert shown["scheduling"]["nodePolicy"] == "Spread"
    assert shown["scheduling"]["schedulerAliases"] == ["volcano", "acme-scheduler"]
    assert shown["nodes"] == [{"name": "n1", "deviceSplitCount": 5}]
    left = [line.removeprefix(f"# not carried over: {file}: ") for line in out.splitlines()]
    assert (
        "global, nameOverride, scheduler.leaderElect, scheduler.admissionWebhook, "
        "devicePlugin.tolerations, devices.enflame.enabled: of HAMi's own objects; "
        "docs/install.md has what is set here"
    ) in left
    unserved = "no pod is served under this name; see docs/vendors.md"
    assert f"dcuResourceName: acme.com/dcunum: {unserved}" in left
    assert f"devices.enflame.customresources: enflame.com/acme: {unserved}" in left
    assert not any("cambricon.com/vmlu" in line or "gcu-memory" in line for line in left)
    assert any("whitelistNamespaces: istio-system: label the namespace" in line for line in left)
    assert any("externalConfigName: the settings of nodes are in" in line for line in left)
    assert any("your-node-name: the chart's example names no node" in line for line in left)


def test_a_device_config_in_the_values_stands_for_what_the_chart_would_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(VALUES.replace('device-config: {content: ""}\n', "") + CONTENT)
    assert main(["import", "hami", "-f", str(file)]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["nvidia"] == {"deviceSplitCount": 7, "defaultCores": 10}


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
