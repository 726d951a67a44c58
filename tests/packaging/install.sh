#!/bin/sh
# install.sh FOLDER : the project and what it needs of requirements.lock, hashes checked, as a Python environment of its
# own; for images. From the sources in the current folder; offline when there are wheels in /wheels.
set -eu
if ls /wheels/*.whl >/dev/null 2>&1; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels; fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_QUIET=1

environment() {  # FOLDER WHAT: with what of the lock
  python3 -m venv --without-pip "$1"
  python3 tests/packaging/locked.py "$2" > "/tmp/$2"
  python3 -m pip --python "$1/bin/python" install --require-hashes --only-binary=:all: --requirement "/tmp/$2"
}
environment "$1" run
environment /tmp/builder build
python3 -m pip --python /tmp/builder/bin/python wheel --no-deps --no-build-isolation --wheel-dir /tmp/built .
python3 -m pip --python "$1/bin/python" install --no-deps /tmp/built/*.whl
