#!/bin/bash
# Scrapes a running agent and has promtool judge what it shows. promtool is in Debian's package prometheus.
# HAMi's names that users' dashboards have are not in snake_case; nothing else may be said against any series.
set -euo pipefail
command -v promtool >/dev/null || { echo "promtool is not on the PATH: install it (prometheus)" >&2; exit 2; }
shown=build/metrics.txt
mkdir -p build
rm -f "$shown"
VGPU_EXPOSITION=$shown .venv/bin/pytest -q -n0 tests/integration/agent/test_agent_metrics.py
known="^(HostCoreUtilization|HostGPUMemoryUsage|vGPU_device_memory_(limit|usage)_in_bytes) metric names should be written in 'snake_case' not 'camelCase'$"
said=$(promtool check metrics < "$shown" 2>&1) || true
if other=$(grep -vE "$known" <<< "$said" | grep .); then
  echo "$other" >&2
  exit 1
fi
echo "promtool: $(grep -vc '^#' "$shown") samples in $shown, nothing against them but HAMi's four names in camel case"
