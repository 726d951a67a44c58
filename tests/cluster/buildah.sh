# buildah.sh : sourced by the scripts that make images. `store` is the folder for layers; with BASES_ARCH set, bases are
# of that architecture.
mkdir -p "$store"

buildah() {  # runs with an empty environment, because the caller's would reach the programs in the image
  env --ignore-environment PATH="$PATH" HOME="$HOME" buildah --root "$store/root" --runroot "$store/run" --storage-driver overlay "$@"
}

unmount_store() {  # a build that was interrupted leaves its container mounted
  awk -v store="$store" 'index($2, store) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount
}

base() {  # NAME ARCHIVE: make an image from a root file system
  local container; container=$(buildah from ${BASES_ARCH:+--arch="$BASES_ARCH"} scratch)
  [ -z "${BASES_ARCH:-}" ] || buildah config --arch="$BASES_ARCH" "$container"
  buildah add --quiet "$container" "$2" / >/dev/null
  buildah commit --quiet --rm "$container" "localhost/$1" >/dev/null
}

# FOLDER OPTIONS-OF-PIP...: download the locked packages for running, and for building the project's own wheel
wheels() {
  local what folder=$1; shift
  for what in run build; do
    .venv/bin/python tests/packaging/locked.py $what > "$store/wanted"
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --python-version=3.11 \
      "$@" --dest="$folder" --requirement="$store/wanted"
  done
}
