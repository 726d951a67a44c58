#!/usr/bin/env bash
# kind.sh up|down : start or remove a Kubernetes of one node by kind (https://kind.sigs.k8s.io), with the project and two
# simulated GPUs on it. All that it writes is in build/kind; your kubeconfig stays as it is. Environment:
#   NODE_IMAGE      the node's image, as kindest/node:v1.36.3; kind's own choice unless given
#   BASE, BUILDER   other bases than the Dockerfiles name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
refuse() { echo "kind: $1" >&2; exit 1; }
cluster=vgpu
here=$PWD/build/kind
export KUBECONFIG=$here/kubeconfig

command -v kind >/dev/null || refuse "kind is not in PATH; https://kind.sigs.k8s.io says how to install it"
tool=${KIND_EXPERIMENTAL_PROVIDER:-}
if [ -z "$tool" ]; then
  for each in podman docker; do
    if command -v "$each" >/dev/null && "$each" info >/dev/null 2>&1; then tool=$each; fi
  done
fi
[ -n "$tool" ] || refuse "docker or podman is needed: none is in PATH, or its daemon does not answer (docker info)"
export KIND_EXPERIMENTAL_PROVIDER=$tool
case ${1:-} in
  up) ;;
  down) exec kind delete cluster --name "$cluster" --kubeconfig "$KUBECONFIG" ;;
  *) sed -n '2,/^set/{/^#/p}' "$0" | cut -c3- >&2; exit 2 ;;
esac
command -v kubectl >/dev/null || refuse "kubectl is not in PATH"
# overlays/demo puts the simulated driver where only containers of this architecture look for it.
[ "$(uname -m)" = x86_64 ] || refuse "the simulated driver runs on amd64 (x86_64) only, and this is $(uname -m)"
if kind get clusters 2>/dev/null | grep -qx "$cluster"; then refuse "cluster $cluster is there already; make kind-down removes it"; fi

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
registry=registry.invalid/vgpu  # in no registry: the node has the images or its pods do not start
mkdir -p "$here"
arguments=()
for name in BASE BUILDER; do
  [ -z "${!name:-}" ] || arguments+=(--build-arg "$name=${!name}")
done
for name in operator nodeagent; do
  target=()
  [ "$name" = operator ] || target=(--target demo)
  "$tool" build --file "$name/Dockerfile" --tag "$registry/$name:$version" "${target[@]}" "${arguments[@]}" .
  rm -f "$here/$name.tar"
  "$tool" save --output "$here/$name.tar" "$registry/$name:$version"
done
kind create cluster --name "$cluster" --kubeconfig "$KUBECONFIG" --wait 5m ${NODE_IMAGE:+--image "$NODE_IMAGE"}
runtime=$(kubectl get nodes --output=jsonpath='{.items[0].status.nodeInfo.containerRuntimeVersion}')
case $runtime in
  containerd://1.*) refuse "the node runs $runtime, which has CDI off: make kind-down, then use kind v0.27 or newer with its own node image" ;;
esac
for name in operator nodeagent; do kind load image-archive "$here/$name.tar" --name "$cluster"; done
MODE=Demo REGISTRY=$registry bash tests/release/install.sh

cat > "$here/pod.yaml" <<END
# A slice of a simulated GPU, by HAMi's resource names.
apiVersion: v1
kind: Pod
metadata: {name: slice}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: $registry/nodeagent:$version  # it has a client of NVML
    command:
    - python
    - -uc
    - |
      import pynvml, time
      pynvml.nvmlInit()
      memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
      print(f"{pynvml.nvmlDeviceGetCount()} GPU with {memory.total >> 20} MiB")
      time.sleep(86400)
    env:
    - {name: VGPU_FAKE_MACHINE, value: /run/vgpu-demo/machine}
    resources:
      limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 4096, nvidia.com/gpucores: 30}
END
cat <<END
Next:
  export KUBECONFIG=$KUBECONFIG
  kubectl apply -f $here/pod.yaml
  kubectl wait --for=condition=Ready pod/slice && kubectl logs slice    # 1 GPU with 4096 MiB
  kubectl vgpu get slices     # pip install . brings kubectl vgpu
  kubectl vgpu get devices
It is gone with: make kind-down
END
