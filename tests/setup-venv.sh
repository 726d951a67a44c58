#!/usr/bin/env bash
# setup-venv.sh VENV : the project's Python environment, from the lock file, with hashes checked.
# On a bare Debian the venv module comes in a package of its own: it is installed when we may.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: $python is older than 3.11; set PYTHON to a newer one" >&2; exit 1; }

missing=()
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
command -v gcc >/dev/null && command -v make >/dev/null || missing+=(gcc make libc6-dev)
command -v kubectl >/dev/null || missing+=(kubernetes-client)  # the demo shows what users see
[ ${#missing[@]} = 0 ] || bash tests/debian.sh "${missing[@]}"

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
