# buildah.sh : sourced by what makes images. `store` is its folder of layers; with BASES_ARCH bases are of that architecture.
mkdir -p "$store"

buildah() {  # with nothing of the caller's environment: it would reach the programs in the image
  env --ignore-environment PATH="$PATH" HOME="$HOME" buildah --root "$store/root" --runroot "$store/run" --storage-driver overlay "$@"
}

unmount_store() {  # a build that was interrupted leaves its container mounted
  awk -v store="$store" 'index($2, store) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount
}

base() {  # NAME ARCHIVE: an image of a root file system
  local container; container=$(buildah from ${BASES_ARCH:+--arch="$BASES_ARCH"} scratch)
  [ -z "${BASES_ARCH:-}" ] || buildah config --arch="$BASES_ARCH" "$container"
  buildah add --quiet "$container" "$2" / >/dev/null
  buildah commit --quiet --rm "$container" "localhost/$1" >/dev/null
}

wheels() {  # FOLDER OPTIONS-OF-PIP...: what the lock names for running, and for building the project's own wheel
  local what folder=$1; shift
  for what in run build; do
    .venv/bin/python tests/packaging/locked.py $what > "$store/wanted"
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --python-version=3.11 \
      "$@" --dest="$folder" --requirement="$store/wanted"
  done
}
