#!/bin/sh
# kubectl-vgpu: run the commands beside this file by a Python that they know.
set -eu
fail() { echo "kubectl vgpu: $1" >&2; exit 1; }
here=$(readlink -f "$0") && here=${here%/*}
python=${VGPU_PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || fail "$python is not in PATH; Python 3.11 or newer is needed"
# Only what is in the archive is loaded (-IS), whatever else is installed.
exec "$python" -IS "$here/main.py" "$@"
