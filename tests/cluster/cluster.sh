#!/usr/bin/env bash
# cluster.sh build|up|down : build, start or remove a real Kubernetes of one node with the project installed on
# simulated GPUs. It first builds what is absent or has changed: programs and bases into $VGPU_CACHE, images into
# build/images. It reads the same variables as node.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
node() { bash "$here/node.sh" "$@"; }

build() {
  bash "$here/packages.sh"
  bash "$here/build.sh" kubernetes
  bash "$here/build.sh" containerd
  mkdir -p "$here/../../build"
  (
    flock 8  # whoever comes second waits, and then finds them made
    bash "$here/images.sh"
  ) 8> "$here/../../build/images.lock"
}

case ${1:-} in
build) build ;;
up)
  build
  node up
  node in kubectl apply --server-side -k "$here/overlay" >/dev/null
  for what in deployment/vgpu-operator deployment/vgpu-webhook deployment/vgpu-scheduler; do
    node in kubectl -n vgpu-system rollout status "$what" --timeout=180s >/dev/null
  done
  node in kubectl -n vgpu-node rollout status daemonset/vgpu-nodeagent --timeout=180s >/dev/null
  # The agent may be ready before the kubelet has asked it for its slots.
  node in kubectl wait node/node1 --for=jsonpath='{.status.allocatable.nvidia\.com/gpu}'=80 --timeout=60s >/dev/null ;;
down) node down ;;
*) sed -n '2,/^set/{/^#/p}' "$0" | cut -c3- >&2; exit 2 ;;
esac
