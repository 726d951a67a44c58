#!/usr/bin/env bash
# Runs a command if claims wait while more than PERCENT of the free memory lies on devices that are partly used.
#
#   bash examples/automation/when-fragmented.sh PERCENT COMMAND [ARGUMENT...]
#   bash examples/automation/when-fragmented.sh 50 kubectl scale deployment/gpu-nodes --replicas=+1
#
# The same numbers as the alert VGPUFragmented, without Prometheus. Exit status: the command's; 0 where it is not run.
set -euo pipefail
percent=${1:?percent} && shift
: "${1:?a command}"
vgpu=${KUBECTL_VGPU:-kubectl vgpu}

waiting=$($vgpu get slices -A -o json | python3 -c '
import json, sys
settled = {"WaitingForPod", "Template", "Released", "ReservationExpired"}
claims = json.load(sys.stdin)["items"]
conditions = (c for claim in claims for c in (claim.get("status") or {}).get("conditions", ()))
print(sum(c["type"] == "Allocated" and c["status"] == "False" and c["reason"] not in settled for c in conditions))')
fragmented=$($vgpu get devices -o json | python3 -c '
import json, sys
units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
def size(text):
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)
free = partly = 0
for device in json.load(sys.stdin)["items"]:
    status = device["status"]
    held = size((status.get("allocated") or {}).get("memory", "0"))
    left = size((status.get("allocatable") or {}).get("memory", "0")) - held
    free += left
    partly += left if held else 0
print(100 * partly // free if free else 0)')

echo "$waiting claims wait; $fragmented % of the free memory is on devices that are partly used"
if [ "$waiting" -gt 0 ] && [ "$fragmented" -gt "$percent" ]; then
  exec "$@"
fi
