#!/usr/bin/env bash
# images.sh : make the images that the node runs, as archives in build/images, again only when one of their inputs has
# changed. No registry is needed: their bases are root file systems made from Debian's packages. The same sources make
# the same bytes (images_check.sh). With NAME... only these are made; IMAGES_OUT names another folder for them;
# IMAGES_ANEW=1 ignores layers of an earlier build.
# Their names are registry.invalid/vgpu/NAME:dev, which no registry can have (RFC 6761): operator, nodeagent (with the
# simulated driver), workload, kube and pause.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
out=${IMAGES_OUT:-build/images}
kube=$(bash "$here/build.sh" --where kubernetes)
bases=$(bash "$here/bases.sh" --where)

# The inputs of each image besides its base, as they are in the working tree, tracked or not.
package="pyproject.toml requirements.lock README.md LICENSE tests/packaging/install.sh tests/packaging/locked.py crds operator nodeagent"
declare -A context=([kube]=$kube)
declare -A sources=(
  [pause]="tests/cluster/images/pause.Dockerfile tests/cluster/images/pause.c"
  [kube]="tests/cluster/images/kube.Dockerfile"
  [workload]="tests/cluster/images/workload.Dockerfile tests/workload requirements.lock libvgpu"
  [operator]="$package"
  [nodeagent]="$package libvgpu"
)
declare -A file=([operator]=operator/Dockerfile [nodeagent]=nodeagent/Dockerfile)
declare -A target=([nodeagent]="--target demo")

stamp() {  # NAME: print a digest of all inputs
  local name=$1
  {
    echo "$bases ${context[$name]:-} ${target[$name]:-}"
    cat "$here/images.sh" "$here/buildah.sh" .dockerignore
    # shellcheck disable=SC2086
    find ${sources[$name]} -type f -not -path '*/__pycache__/*' -not -path 'libvgpu/build/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -c1-16
}

stale=()
[ $# -gt 0 ] || set -- "${!sources[@]}"
for name; do
  [ "$(cat "$out/$name.stamp" 2>/dev/null)" = "$(stamp "$name")" ] || stale+=("$name")
done
[ ${#stale[@]} = 0 ] && exit

bash "$here/bases.sh"
mkdir -p "$out" build/wheels
exec 9> "$out/.lock"
flock 9
# Layers are kept for the next build.
store=$(realpath -m "$out/../containers")
# shellcheck source=tests/cluster/buildah.sh
. "$here/buildah.sh"
trap unmount_store EXIT

fresh_base() {  # NAME: make the image unless it was made from the present bases
  [ "$(cat "$store/$1.stamp" 2>/dev/null)" != "$bases" ] || return 0
  base "$1" "$bases/$1.tar"
  echo "$bases" > "$store/$1.stamp"
}

echo "images: making ${stale[*]}" >&2
if [ "$(cat build/wheels/.stamp 2>/dev/null)" != "$(sha256sum < requirements.lock)" ]; then
  rm -f build/wheels/*
  wheels build/wheels
  sha256sum < requirements.lock > build/wheels/.stamp
fi
fresh_base runtime
fresh_base builder
layers=--layers
[ -z "${IMAGES_ANEW:-}" ] || layers=--no-cache
for name in "${stale[@]}"; do
  stamp=$(stamp "$name")
  # shellcheck disable=SC2086
  buildah build --quiet $layers --timestamp=315532800 --isolation=chroot ${target[$name]:-} \
    --build-arg=BUILDER=localhost/builder --build-arg=BASE=localhost/runtime \
    --file="${file[$name]:-tests/cluster/images/$name.Dockerfile}" --tag="registry.invalid/vgpu/$name:dev" "${context[$name]:-.}" >/dev/null
  rm -f "$out/$name.tar"
  buildah push --quiet "registry.invalid/vgpu/$name:dev" "docker-archive:$out/$name.tar:registry.invalid/vgpu/$name:dev"
  echo "$stamp" > "$out/$name.stamp"
done
buildah rm --all >/dev/null
