#!/usr/bin/env bash
# setup-venv.sh VENV : the project's Python environment, from the lock file, with hashes checked.
# On a bare Debian the venv module comes in a package of its own: it is installed when we may.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: $python is older than 3.11; set PYTHON to a newer one" >&2; exit 1; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
need_packages() {
  echo "setup: installing $*"
  as_root apt-get update -qq && DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null || {
    echo "setup: please install: $*" >&2; exit 1; }
}
"$python" -c 'import ensurepip, venv' 2>/dev/null || need_packages python3-venv
command -v gcc >/dev/null && command -v make >/dev/null || need_packages gcc make libc6-dev
command -v kubectl >/dev/null || need_packages kubernetes-client  # the demo shows what users see
command -v promtool >/dev/null || need_packages prometheus  # judges metrics, alerts and dashboards

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
