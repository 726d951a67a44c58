#!/bin/sh
# kubectl-vgpu: install the wheel beside this file into a virtual environment of its own, once, and run it.
set -eu
fail() { echo "kubectl vgpu: $1" >&2; exit 1; }
here=$(readlink -f "$0") && here=$(dirname "$here")
python=${VGPU_PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || fail "$python is not in PATH; Python 3.11 or newer is needed"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python is older than 3.11; name a newer one in VGPU_PYTHON"
home=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kubectl-vgpu/@VERSION@
if [ ! -x "$home/bin/kubectl-vgpu" ]; then
  echo "kubectl vgpu: installing @VERSION@ into $home" >&2
  mkdir -p "$(dirname "$home")"
  rm -rf "$home"
  trap 'rm -rf "$home"' EXIT
  {
    "$python" -m venv "$home" &&
      "$home/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$here/requirements.txt" &&
      "$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$here/@WHEEL@"
  } >&2 || fail "it could not be installed"
  trap - EXIT
fi
exec "$home/bin/kubectl-vgpu" "$@"
