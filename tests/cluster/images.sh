#!/usr/bin/env bash
# images.sh : the images that the node runs, as archives in build/images; made again only when something that goes into
# them has changed. No registry is asked: they stand on root file systems made from Debian's packages. The same sources make
# the same bytes (images_check.sh). With NAME... only these are made; IMAGES_OUT is another folder for them; with
# IMAGES_ANEW=1 layers of an earlier build are not used.
#   vgpu/operator:dev  vgpu/nodeagent:dev (with the simulated driver)  vgpu/workload:dev  vgpu/kube:dev  vgpu/pause:dev
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
out=${IMAGES_OUT:-build/images}
python=.venv/bin/python
kube=$(bash "$here/build.sh" --where kubernetes)
bases=$(bash "$here/bases.sh" --where)

# What each image depends on, but for its base; tracked or not, as the working tree has it.
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

stamp() {  # NAME: a digest of all that goes into it
  local name=$1
  {
    echo "$bases ${context[$name]:-} ${target[$name]:-}"
    cat "$here/images.sh" .dockerignore
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
# Layers stay for the next time; a build that was interrupted leaves its container mounted.
store=$(realpath -m "$out/../containers")
leave() { awk -v store="$store" 'index($2, store) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount; }
trap leave EXIT
mkdir -p "$store"
buildah() {  # with nothing of the caller's environment: it would reach the programs in the image
  env --ignore-environment PATH="$PATH" HOME="$HOME" buildah --root "$store/root" --runroot "$store/run" --storage-driver overlay "$@"
}

base() {  # NAME: an image of a root file system
  [ "$(cat "$store/$1.stamp" 2>/dev/null)" != "$bases" ] || return 0
  local container; container=$(buildah from scratch)
  buildah add --quiet "$container" "$bases/$1.tar" / >/dev/null
  buildah commit --quiet --rm "$container" "localhost/$1" >/dev/null
  echo "$bases" > "$store/$1.stamp"
}

wheels() {  # what the lock names for running, and for building the project's own wheel
  local what
  for what in run build; do
    $python tests/packaging/locked.py $what > "$store/wanted"
    $python -m pip download --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --python-version=3.11 \
      --dest=build/wheels --requirement="$store/wanted"
  done
}

echo "images: making ${stale[*]}" >&2
if [ "$(cat build/wheels/.stamp 2>/dev/null)" != "$(sha256sum < requirements.lock)" ]; then
  rm -f build/wheels/*
  wheels
  sha256sum < requirements.lock > build/wheels/.stamp
fi
base runtime
base builder
layers=--layers
[ -z "${IMAGES_ANEW:-}" ] || layers=--no-cache
for name in "${stale[@]}"; do
  stamp=$(stamp "$name")
  # shellcheck disable=SC2086
  buildah build --quiet $layers --timestamp=315532800 --isolation=chroot ${target[$name]:-} \
    --build-arg=BUILDER=localhost/builder --build-arg=BASE=localhost/runtime \
    --file="${file[$name]:-tests/cluster/images/$name.Dockerfile}" --tag="docker.io/vgpu/$name:dev" "${context[$name]:-.}" >/dev/null
  rm -f "$out/$name.tar"
  buildah push --quiet "docker.io/vgpu/$name:dev" "docker-archive:$out/$name.tar:docker.io/vgpu/$name:dev"
  echo "$stamp" > "$out/$name.stamp"
done
buildah rm --all >/dev/null
