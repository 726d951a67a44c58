#!/usr/bin/env bash
# Makes an Immediate claim, waits until it has devices, and only then starts the pod or job that uses it.
#
#   bash examples/automation/start-when-allocated.sh CLAIM.yaml WORKLOAD.yaml [SECONDS]
#
# The claim's file has one VGPUClaim with bindingMode: Immediate. Exit status 1: it got no devices in time; then the
# claim is deleted, and the condition's message is printed.
set -euo pipefail
claim=${1:?the file with the claim} workload=${2:?the file with what uses it} seconds=${3:-300}

kubectl apply -f "$claim" >/dev/null
name=$(kubectl get -f "$claim" -o jsonpath='{.metadata.name}')
if ! kubectl wait --for=condition=Allocated -f "$claim" --timeout="${seconds}s" >/dev/null; then
  path='{.status.conditions[?(@.type=="Allocated")].message}'
  echo "claim $name got nothing in $seconds s: $(kubectl get -f "$claim" -o jsonpath="$path")" >&2
  kubectl delete -f "$claim" --wait=false >/dev/null
  exit 1
fi
echo "claim $name has $(kubectl get -f "$claim" -o jsonpath='{.status.cards}') on $(kubectl get -f "$claim" -o jsonpath='{.status.allocation.nodeName}')"
kubectl apply -f "$workload"
