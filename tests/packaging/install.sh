#!/bin/sh
# install.sh needed|project FOLDER : for images, from the sources in the current folder.
#   needed    what the project needs of requirements.lock, hashes checked, as a Python environment of its own
#   project   the project itself, into that environment
# Offline when there are wheels in /wheels. Two steps, so that what is needed is a layer that stays.
set -eu
if ls /wheels/*.whl >/dev/null 2>&1; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels; fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_QUIET=1
# The same bytes each time: compiled modules hold a hash of their source in place of its time.
export SOURCE_DATE_EPOCH=315532800 PYTHONHASHSEED=0
builder=/tmp/builder

environment() {  # FOLDER WHAT: with what of the lock
  python3 -m venv --without-pip "$1"
  python3 tests/packaging/locked.py "$2" > "/tmp/$2"
  python3 -m pip --python "$1/bin/python" install --require-hashes --only-binary=:all: --requirement "/tmp/$2"
}

case $1 in
  needed)
    environment "$2" run
    environment $builder build ;;
  project)
    python3 -m pip --python $builder/bin/python wheel --no-deps --no-build-isolation --wheel-dir /tmp/built .
    python3 -m pip --python "$2/bin/python" install --no-deps /tmp/built/*.whl ;;
esac
