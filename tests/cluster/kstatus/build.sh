#!/usr/bin/env bash
# build.sh : builds the program kstatus from pinned Go modules into $VGPU_CACHE/kstatus-HASH, where HASH covers its
# sources, once; prints its path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
cache=${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}
built=$cache/kstatus-$(cat go.mod go.sum main.go build.sh | sha256sum | cut -c1-16)
if [ ! -x "$built/kstatus" ]; then
  command -v go >/dev/null || { echo "kstatus: Go is needed to build it, and there is no go in PATH (https://go.dev/dl)" >&2; exit 1; }
  mkdir -p "$built"
  unfinished=$(mktemp "$built/kstatus.XXXXXX")
  CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath -buildvcs=false" go build -ldflags "-s -w" -o "$unfinished" .
  chmod 755 "$unfinished"
  mv "$unfinished" "$built/kstatus"
fi
echo "$built/kstatus"
