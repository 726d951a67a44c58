#!/usr/bin/env bash
# A tour of a running installation: create a slice, look at it, break it, explain it, repair it, clean up.
#
#   make demo KEEP=1          # prints a KUBECONFIG; or any cluster with the project on it
#   KUBECONFIG=... bash examples/tour.sh
#
# INSTALL=1 applies manifests/overlays/default first. Everything that the tour makes is in the namespace vgpu-tour,
# and gone at its end; a device that it cordons is uncordoned, whatever happens.
set -euo pipefail
cd "$(dirname "$0")/.."
namespace=vgpu-tour
vgpu=${KUBECTL_VGPU:-kubectl vgpu}
cordoned=""

step() { printf '\n== %s\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }
leave() {
  for device in $cordoned; do $vgpu drain "device/$device" --undo || true; done
  kubectl delete namespace "$namespace" --ignore-not-found --wait=false >/dev/null
}
trap leave EXIT

pod() {  # pod NAME MIB CORES
  kubectl -n "$namespace" apply -f - <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: $1
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: ${IMAGE:-debian:12-slim}
    command: ["sleep", "infinity"]
    resources:
      limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: $2, nvidia.com/gpucores: $3}
YAML
}

if [ -n "${INSTALL:-}" ]; then
  step "Install, and wait until every program runs"
  run kubectl apply --server-side -k manifests/overlays/default
  run kubectl -n vgpu-system rollout status deployment/vgpu-operator deployment/vgpu-webhook deployment/vgpu-scheduler
  run kubectl -n vgpu-node rollout status daemonset/vgpu-nodeagent
fi

step "What there is"
run $vgpu get nodes
run $vgpu get devices
$vgpu doctor || echo "(doctor names what is missing; a cluster of make demo runs no pods of the project)"

step "The first slice: 1000 MiB and a tenth of the compute of one device"
kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
pod first 1000 10
run kubectl -n "$namespace" wait --for=condition=Ready pod/first --timeout=120s

step "See it"
run $vgpu get slices -n "$namespace" -o wide
run $vgpu explain first -n "$namespace"

step "Break it: cordon every device, and ask for another slice"
for device in $($vgpu get devices -o jsonpath='{.items[*].metadata.name}'); do
  run kubectl patch gpudevice "$device" --type=merge -p '{"spec":{"cordoned":true}}'
  cordoned="$cordoned $device"
done
pod second 1000 10
run kubectl -n "$namespace" wait --for=jsonpath='{.status.phase}'=Pending pod/second --timeout=60s

step "Explain it: why does the pod wait?"
for _ in $(seq 60); do
  why=$($vgpu explain second -n "$namespace")
  if grep -q '^Reason:.*CardCordoned' <<<"$why"; then break; fi
  sleep 1
done
printf '%s\n' "$why"
grep -q CardCordoned <<<"$why"

step "Repair it"
for device in $cordoned; do run $vgpu drain "device/$device" --undo; done
cordoned=""
run kubectl -n "$namespace" wait --for=condition=Ready pod/second --timeout=120s
run $vgpu get slices -n "$namespace"

step "Leave: delete what the tour made; the devices are free again"
run kubectl -n "$namespace" delete pod first second --timeout=120s
for _ in $(seq 60); do
  left=$($vgpu get slices -n "$namespace" -o name)
  if [[ $left != vgpuclaim* ]]; then break; fi
  sleep 1
done
[[ $left != vgpuclaim* ]] || { echo "left: $left" >&2; exit 1; }
run $vgpu get devices
echo
echo "The project itself leaves with: kubectl vgpu uninstall"
