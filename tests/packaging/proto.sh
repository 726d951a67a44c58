#!/usr/bin/env bash
# proto.sh          generate the kubelet API stubs beside their .proto files
# proto.sh --check  fail when the committed stubs are not what the .proto files give
set -euo pipefail
cd "$(dirname "$0")/../.."
package=vgpu_nodeagent/kubelet/api
venv=$PWD/.venv

generate() {
    # The include root is nodeagent/, so that the stubs import each other by their full package name.
    PATH="$venv/bin:$PATH" "$venv/bin/python" -m grpc_tools.protoc -Inodeagent \
        --python_out="$1" --grpc_python_out="$1" --mypy_out="quiet:$1" --mypy_grpc_out="quiet:$1" \
        nodeagent/"$package"/*.proto
}

case "${1-}" in
"") generate nodeagent ;;
--check)
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    generate "$fresh"
    stale=0
    for file in "$fresh/$package"/*; do
        cmp -s "$file" "nodeagent/$package/${file##*/}" || { echo "stale: nodeagent/$package/${file##*/}" >&2; stale=1; }
    done
    [ "$stale" = 0 ] || { echo "run: make proto" >&2; exit 1; }
    ;;
*) echo "usage: proto.sh [--check]" >&2; exit 2 ;;
esac
