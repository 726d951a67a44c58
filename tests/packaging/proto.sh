#!/usr/bin/env bash
# proto.sh          generate the stubs of the kubelet's interfaces beside their .proto files
# proto.sh --check  fail when the committed stubs are not what the .proto files give
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$PWD/.venv
# Root and package: of the agent, and of the tests' container runtime.
packages=("nodeagent vgpu_nodeagent/kubelet/api" "tests vgpu_local/cri")

generate() {  # the stubs of a root's package, into the root $3
    # The root is the include path, so that the stubs import each other by their full package name.
    PATH="$venv/bin:$PATH" "$venv/bin/python" -m grpc_tools.protoc -I"$1" \
        --python_out="$3" --grpc_python_out="$3" --mypy_out="quiet:$3" --mypy_grpc_out="quiet:$3" \
        "$1/$2"/*.proto
}

case "${1-}" in
"") for each in "${packages[@]}"; do read -r root package <<< "$each"; generate "$root" "$package" "$root"; done ;;
--check)
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    stale=0
    for each in "${packages[@]}"; do
        read -r root package <<< "$each"
        generate "$root" "$package" "$fresh"
        for file in "$fresh/$package"/*; do
            cmp -s "$file" "$root/$package/${file##*/}" || { echo "stale: $root/$package/${file##*/}" >&2; stale=1; }
        done
    done
    [ "$stale" = 0 ] || { echo "run: make proto" >&2; exit 1; }
    ;;
*) echo "usage: proto.sh [--check]" >&2; exit 2 ;;
esac
