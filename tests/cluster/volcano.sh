#!/usr/bin/env bash
# volcano.sh SOURCE : build Volcano's scheduler and job controller from a checkout of github.com/volcano-sh/volcano,
# for tests/integration/real/test_volcano.py.
# They go with the CRDs to $VGPU_CACHE/volcano-HASH, and the folder's name is printed:
#   VOLCANO=$(bash tests/cluster/volcano.sh SOURCE) VGPU_TEST_CLUSTER=real .venv/bin/pytest tests/integration/real/test_volcano.py
# No Go module is pinned here, because the extender plugin of v1.10 lacks the verbs allocate and deallocate.
set -euo pipefail

source=${1:?volcano.sh: give the folder of a checkout of Volcano}
cache=${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}
grep -q 'extender.allocateFuncVerb' "$source/pkg/scheduler/plugins/extender/extender.go" || {
  echo "volcano.sh: the extender plugin in $source knows no extender.allocateFuncVerb: a newer Volcano is needed" >&2; exit 1; }
hash=$(cat "$source/go.sum" "$source"/pkg/scheduler/plugins/extender/*.go | sha256sum | cut -c1-16)
built=$cache/volcano-$hash
if [ ! -x "$built/bin/controller-manager" ]; then
  mkdir -p "$built/bin" "$built/crds"
  cp "$source"/config/crd/volcano/bases/*.yaml "$built/crds/"
  (cd "$source" && CGO_ENABLED=0 GOFLAGS="-mod=mod -trimpath -buildvcs=false" nice -n 10 go build -o "$built/bin/" ./cmd/scheduler ./cmd/controller-manager) >&2
fi
echo "$built"
