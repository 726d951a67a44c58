#!/usr/bin/env bash
# build.sh [--where] : a real Kubernetes (etcd, control plane, kubelet, kubectl in one binary) from pinned Go
# modules, for the tests. It goes to $VGPU_CACHE/kube-HASH/bin, where HASH covers everything the result depends
# on, so it is built once and again only when one of those files changes. Prints nothing when it is there already.
#   --where   only print the folder of the programs, built or not
# The module and build caches are Go's own. The first build takes some minutes and about 4 GB of cache.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}
hash=$(cd "$here" && cat kube/go.mod kube/go.sum kube/main.go build.sh | sha256sum | cut -c1-16)
built=$cache/kube-$hash
programs=(etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet)

if [ "${1:-}" = --where ]; then echo "$built/bin"; exit; fi
[ -x "$built/bin/kube" ] && exit

say() { echo "control-plane: $*" >&2; }

require_go() {  # the version that go.mod names, or newer
  local wanted found
  wanted=$(awk '$1 == "go" {print $2}' "$here/kube/go.mod")
  command -v go >/dev/null || { say "Go $wanted or newer is needed to build Kubernetes, and there is no go in PATH (https://go.dev/dl)"; exit 1; }
  found=$(GOTOOLCHAIN=local go env GOVERSION); found=${found#go}
  [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n1)" = "$wanted" ] && return
  [ "$(go env GOTOOLCHAIN)" != local ] && return  # go fetches the toolchain that it needs
  say "Go $wanted or newer is needed to build Kubernetes, found $found (https://go.dev/dl)"; exit 1
}

require_go
mkdir -p "$cache"
exec 9> "$cache/build.lock"
flock 9  # whoever comes second waits, and then finds it done
[ -x "$built/bin/kube" ] && exit

say "building Kubernetes into $built (once; some minutes)"
unfinished=$(mktemp -d "$cache/kube.XXXXXX")
trap 'rm -rf "$unfinished"' EXIT
mkdir "$unfinished/bin"
export CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath -buildvcs=false"
cd "$here/kube"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<< "${version#v}"
stamps="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  stamps+=" -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
done
nice -n 10 go build -tags grpcnotrace -ldflags "$stamps" -o "$unfinished/bin/kube" .
for program in "${programs[@]}"; do ln -s kube "$unfinished/bin/$program"; done
chmod 755 "$unfinished"
mv -T "$unfinished" "$built"
trap - EXIT
