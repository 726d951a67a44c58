#!/usr/bin/env bash
# setup.sh FOLDER: install what the tests of the page in a browser need, once, outside the tree.
#   FOLDER/python    playwright, hashes checked
#   FOLDER/axe       axe-core, which judges what screen readers get; from npm, its digest checked
# Chromium comes from Debian, and so does npm if it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1
axe=4.14.1
digest=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v npm >/dev/null || missing+=(npm)
[ ${#missing[@]} = 0 ] || bash tests/debian.sh "${missing[@]}"
mkdir -p "$folder/axe"
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade \
  --target "$folder/python" -r tests/browser/requirements.lock
npm pack --silent --pack-destination "$folder/axe" "axe-core@$axe" >/dev/null
sha512sum --check --quiet <<<"$digest  $folder/axe/axe-core-$axe.tgz"
tar xzf "$folder/axe/axe-core-$axe.tgz" -C "$folder/axe" --strip-components=1 package/axe.min.js package/LICENSE
