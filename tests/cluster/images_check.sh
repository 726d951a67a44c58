#!/usr/bin/env bash
# images_check.sh : build the project's images twice from the same base; they must be the same to the byte.
# Prints their digests.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
digest() {  # ARCHIVE: the digest of the image's configuration, which contains the digests of its layers
  tar -xOf "$1" manifest.json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["Config"])'
}
names=(operator nodeagent)
export IMAGES_OUT=$folder/images IMAGES_ANEW=1
bash "$here/images.sh" "${names[@]}"
mkdir "$folder/first"
mv "$IMAGES_OUT"/* "$folder/first"
bash "$here/images.sh" "${names[@]}"
for name in "${names[@]}"; do
  echo "$name $(digest "$IMAGES_OUT/$name.tar")"
  cmp "$folder/first/$name.tar" "$IMAGES_OUT/$name.tar"
done
