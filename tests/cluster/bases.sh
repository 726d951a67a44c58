#!/usr/bin/env bash
# bases.sh [--where] : root file systems that the images in the tests stand on, made from Debian's packages because no
# registry can be reached there. Once, into $VGPU_CACHE/bases-HASH; with BASES_ARCH=arm64 for that architecture:
#   runtime.tar   Debian with Python       builder.tar   the same with pip and a C compiler
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}
built=$cache/bases-$(sha256sum < "$here/bases.sh" | cut -c1-16)${BASES_ARCH:+-$BASES_ARCH}
[ "${1:-}" = --where ] && { echo "$built"; exit; }
[ -e "$built/builder.tar" ] && exit

mkdir -p "$cache"
exec 9> "$cache/bases.lock"
flock 9  # whoever comes second waits, and then finds it done
[ -e "$built/builder.tar" ] && exit
echo "images: making their base from Debian's packages (once; some minutes)" >&2
unfinished=$(mktemp -d "$cache/bases.XXXXXX")
trap 'rm -rf "$unfinished"' EXIT

bootstrap() {  # ARCHIVE PACKAGES
  mmdebstrap --quiet --variant=minbase --include="$2" ${BASES_ARCH:+--architectures="$BASES_ARCH"} \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$unfinished/$1"
}
bootstrap runtime.tar python3,ca-certificates
bootstrap builder.tar python3,python3-pip,ca-certificates,gcc,make,libc6-dev
chmod 755 "$unfinished"
mv -T "$unfinished" "$built"
trap - EXIT
