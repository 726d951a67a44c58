#!/usr/bin/env bash
# install.sh : install the images that images.sh has pushed on the cluster of the current context, and wait until all runs.
# The kustomization that it applies stays in build/install. Environment:
#   REGISTRY     where the images are (required)
#   MODE         Extender (the default), Gate or Claims
#   COMPONENTS   folders of manifests/components, as "web monitoring"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${REGISTRY:?make install REGISTRY=registry.example/vgpu [MODE=Gate] [COMPONENTS=\"web monitoring\"]}"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
case ${MODE:-Extender} in
  Extender) overlay=default ;;
  Gate) overlay=gate ;;
  Claims) overlay=claims ;;
  Demo) overlay=demo ;;  # Extender with simulated GPUs, for kind.sh: nodeagent must have the simulated driver
  *) echo "install: MODE: Invalid value: $MODE: Extender, Gate or Claims" >&2; exit 2 ;;
esac
server=$(kubectl version --output=json | sed -n '/"serverVersion"/,$ s/.*"gitVersion": "v\([0-9.]*\).*/\1/p')
[ -n "$server" ] || { echo "install: the cluster does not say its version" >&2; exit 1; }
minor=$(echo "$server" | cut -d. -f2)
[ "$minor" -ge 31 ] || { echo "install: Kubernetes 1.31 or later is needed, and this is $server" >&2; exit 2; }
if [ "$overlay" = claims ] && [ "$minor" -lt 36 ]; then
  echo "install: MODE: Invalid value: Claims: needs Kubernetes 1.36 or later, and this is $server" >&2
  exit 2
fi
components=()
for each in ${COMPONENTS:-}; do
  [ -d "manifests/components/$each" ] || { echo "install: COMPONENTS: Invalid value: $each: no folder of manifests/components" >&2; exit 2; }
  components+=("$each")
done
# Agents of an older cluster are never ready without it.
if [ "$minor" -lt 36 ] && [[ " ${COMPONENTS:-} " != *" agents-read-all-pods "* ]]; then components+=(agents-read-all-pods); fi

mkdir -p build/install
{
  echo "apiVersion: kustomize.config.k8s.io/v1beta1"
  echo "kind: Kustomization"
  echo "resources: [../../manifests/overlays/$overlay]"
  echo "components:"
  for each in "${components[@]}"; do echo "- ../../manifests/components/$each"; done
  echo "images:"
  for name in operator nodeagent; do
    echo "- {name: registry.invalid/vgpu/$name, newName: $REGISTRY/$name, newTag: $version}"
  done
  echo "- {name: registry.k8s.io/kube-scheduler, newTag: v$server}"
} > build/install/kustomization.yaml
kubectl apply --server-side -k build/install
for each in vgpu-system/deployment/vgpu-operator vgpu-system/deployment/vgpu-webhook vgpu-node/daemonset/vgpu-nodeagent; do
  kubectl --namespace="${each%%/*}" rollout status "${each#*/}" --timeout=5m
done
echo "install: vgpu $version runs, mode ${MODE:-Extender}. See: kubectl get gpudevices"
