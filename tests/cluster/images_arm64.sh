#!/usr/bin/env bash
# images_arm64.sh [NAME...] : build the images of operator and agent for arm64, and start them under qemu-user
# (root). Checks that each is for arm64, that its programs start with everything they import, and that its library is
# for arm64.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
export BASES_ARCH=arm64
out=$(realpath -m "${IMAGES_OUT:-build/images-arm64}")

# The kernel hands programs for arm64 to qemu. It keeps qemu's file open, so no root file system needs a copy of its
# own.
formats=/proc/sys/fs/binfmt_misc
registered=
context=$(mktemp -d)
store=$context/containers
# shellcheck source=tests/cluster/buildah.sh
. "$here/buildah.sh"
leave() {
  unmount_store
  rm -rf "$context"
  [ -z "$registered" ] || echo -1 > "$formats/qemu-aarch64"
}
trap leave EXIT
bash "$here/packages.sh"
command -v qemu-aarch64-static >/dev/null && command -v arch-test >/dev/null ||
  bash "$here/../debian.sh" qemu-user-static arch-test
[ -e "$formats/register" ] || mount -t binfmt_misc none "$formats"
if [ ! -e "$formats/qemu-aarch64" ]; then
  # The head of an ELF executable or library for machine 183, little-endian, 64 bits (man 5 elf).
  printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F' \
    > "$formats/register"
  registered=yes
fi

bash "$here/bases.sh"
bases=$(bash "$here/bases.sh" --where)

# The tracked sources, and wheels for arm64 in the place where those of this machine would be.
git ls-files -z | xargs -0 cp --parents -t "$context"
platforms=(--platform=manylinux2014_aarch64)
for glibc in 17 24 26 28 31 34 35; do platforms+=("--platform=manylinux_2_${glibc}_aarch64"); done
wheels "$context/build/wheels" "${platforms[@]}"
for name in runtime builder; do base "$name" "$bases/$name.tar"; done
mkdir -p "$out"
declare -A starts=([operator]="vgpu-operator --help; vgpu-webhook --help; vgpu-web --help" [nodeagent]="vgpu-nodeagent --help")
[ $# -gt 0 ] || set -- operator nodeagent
for name; do
  echo "images-arm64: making $name"
  buildah build --quiet --arch=arm64 --timestamp=315532800 --isolation=chroot \
    --build-arg=BUILDER=localhost/builder --build-arg=BASE=localhost/runtime \
    --file="$context/$name/Dockerfile" --tag="registry.invalid/vgpu/$name:dev" "$context" >/dev/null
  [ "$(buildah inspect --format '{{.OCIv1.Architecture}}' "registry.invalid/vgpu/$name:dev")" = arm64 ]
  container=$(buildah from "registry.invalid/vgpu/$name:dev")
  buildah run --isolation=chroot "$container" -- sh -euc "${starts[$name]}" >/dev/null
  if [ "$name" = nodeagent ]; then
    # The shadow is only loaded together with the library, so just its ELF head is checked.
    buildah run --isolation=chroot "$container" -- python3 -c '
import ctypes, pathlib, platform, struct
assert platform.machine() == "aarch64"
folder = pathlib.Path("/usr/lib/vgpu")
for name in ("libvgpu.so", "shadow/libcuda.so.1"):
    machine, = struct.unpack_from("<H", (folder / name).read_bytes(), 18)
    assert machine == 183, (name, machine)
ctypes.CDLL(folder / "libvgpu.so")'
  fi
  rm -f "$out/$name.tar"
  buildah push --quiet "registry.invalid/vgpu/$name:dev" "docker-archive:$out/$name.tar:registry.invalid/vgpu/$name:dev"
  echo "images-arm64: $name starts ($(du -m "$out/$name.tar" | cut -f1) MB, $out/$name.tar)"
done
