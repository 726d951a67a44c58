#!/usr/bin/env bash
# images.sh : build the images of operator and agent for all architectures, by docker buildx, podman or buildah,
# whichever is here. Names are REGISTRY/operator:VERSION and REGISTRY/nodeagent:VERSION with the version of
# pyproject.toml. Environment:
#   REGISTRY        where the images belong, as registry.example/vgpu (required)
#   PUSH=1          push them there; otherwise each goes into build/oci/NAME.tar, an OCI archive of all architectures
#   PLATFORMS       linux/amd64,linux/arm64 unless given
#   BASE, BUILDER   other bases than the Dockerfiles name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${REGISTRY:?make images REGISTRY=registry.example/vgpu [PUSH=1]}"
platforms=${PLATFORMS:-linux/amd64,linux/arm64}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
tool=
for each in buildah podman docker; do
  command -v "$each" >/dev/null || continue
  # Without buildx docker builds for one architecture only.
  [ "$each" != docker ] || docker buildx version >/dev/null 2>&1 || continue
  tool=$each
done
[ -n "$tool" ] || { echo "images: docker with buildx, podman or buildah is needed, and none is in PATH" >&2; exit 1; }

# Only what git knows: build/wheels would bring wheels of this machine's architecture alone.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
git ls-files -z | xargs -0 cp --parents --no-dereference -t "$context"
mkdir -p build/oci  # not build/images: a node of make cluster imports what is there
arguments=()
for name in BASE BUILDER; do
  [ -z "${!name:-}" ] || arguments+=(--build-arg "$name=${!name}")
done
for name in operator nodeagent; do
  reference=$REGISTRY/$name:$version
  archive=build/oci/$name.tar
  file=$context/$name/Dockerfile
  if [ "$tool" = docker ]; then
    where=(--output "type=oci,dest=$archive")
    [ -z "${PUSH:-}" ] || where=(--push)
    docker buildx build --platform "$platforms" --file "$file" --tag "$reference" "${arguments[@]}" "${where[@]}" "$context"
  else
    # A list of this name from an earlier run would keep its images.
    "$tool" manifest rm "$reference" >/dev/null 2>&1 || true
    "$tool" build --platform "$platforms" --file "$file" --manifest "$reference" "${arguments[@]}" "$context"
    rm -f "$archive"
    to=oci-archive:$archive:$reference
    [ -z "${PUSH:-}" ] || to=docker://$reference
    "$tool" manifest push --all "$reference" "$to"
  fi
  if [ -n "${PUSH:-}" ]; then echo "images: $reference is pushed"; else echo "images: $reference is in $archive"; fi
done
