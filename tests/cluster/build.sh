#!/usr/bin/env bash
# build.sh [--where] [kubernetes|kubernetes-1.37|containerd] : programs of a real Kubernetes from pinned Go modules, for
# the tests.
#   kubernetes       etcd, control plane, kubelet, kube-proxy and kubectl in one binary (the default), of kube/go.mod
#   kubernetes-1.37  the same of the next minor version, which kube/1.37.mod pins
#   containerd       containerd with its shim and ctr: one that knows CDI, which Debian 12's does not
# They go to $VGPU_CACHE/NAME-HASH/bin, where HASH covers everything the result depends on, so each is built
# once and again only when one of those files changes. Prints nothing when it is there already.
#   --where   only print the folder of the programs, built or not
# The module and build caches are Go's own. The first build takes some minutes and about 4 GB of cache.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}
where=
[ "${1:-}" = --where ] && { where=1; shift; }
what=${1:-kubernetes}
pins=go
case $what in
  kubernetes) room=kube prefix=kube main=(kube/main.go) needed=(kube) ;;
  kubernetes-1.37) room=kube prefix=kube-1.37 pins=1.37 main=(kube/main.go) needed=(kube) ;;
  containerd) room=containerd prefix=containerd main=() needed=(containerd ctr) ;;
  *) echo "build.sh: kubernetes, kubernetes-1.37 or containerd, not $what" >&2; exit 2 ;;
esac
sources=("$room/$pins.mod" "$room/$pins.sum" "${main[@]}")
hash=$(cd "$here" && cat "${sources[@]}" build.sh | sha256sum | cut -c1-16)
built=$cache/$prefix-$hash
is_built() { local program; for program in "${needed[@]}"; do [ -x "$built/bin/$program" ] || return 1; done; }

if [ -n "$where" ]; then echo "$built/bin"; exit; fi
is_built && exit

say() { echo "$what: $*" >&2; }

require_go() {  # the version that the pins name, or newer
  local wanted found
  wanted=$(awk '$1 == "go" {print $2}' "$here/$room/$pins.mod")
  command -v go >/dev/null || { say "Go $wanted or newer is needed to build it, and there is no go in PATH (https://go.dev/dl)"; exit 1; }
  found=$(GOTOOLCHAIN=local go env GOVERSION); found=${found#go}
  [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n1)" = "$wanted" ] && return
  [ "$(go env GOTOOLCHAIN)" != local ] && return  # go fetches the toolchain that it needs
  say "Go $wanted or newer is needed to build it, found $found (https://go.dev/dl)"; exit 1
}

kube() {  # into the folder $1
  local version major minor stamps package program
  version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
  IFS=. read -r major minor _ <<< "${version#v}"
  stamps="-s -w"
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    stamps+=" -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
  done
  nice -n 10 go build -tags grpcnotrace -ldflags "$stamps" -o "$1/kube" .
  for program in etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet; do
    ln -s kube "$1/$program"
  done
}

containerd() {  # into the folder $1
  local module=github.com/containerd/containerd/v2 version
  version=$(go list -m -f '{{.Version}}' $module)
  nice -n 10 go build -tags no_btrfs -ldflags "-s -w -X $module/version.Version=$version" -o "$1/" \
    $module/cmd/containerd $module/cmd/containerd-shim-runc-v2 $module/cmd/ctr
}

require_go
mkdir -p "$cache"
exec 9> "$cache/build.lock"
flock 9  # whoever comes second waits, and then finds it done
is_built && exit

say "building into $built (once; some minutes)"
unfinished=$(mktemp -d "$cache/$prefix.XXXXXX")
trap 'rm -rf "$unfinished"' EXIT
mkdir "$unfinished/bin"
export CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath -buildvcs=false -modfile=$pins.mod"
(cd "$here/$room" && "$room" "$unfinished/bin")
chmod 755 "$unfinished"
mv -T "$unfinished" "$built"
trap - EXIT
