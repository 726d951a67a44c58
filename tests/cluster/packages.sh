#!/usr/bin/env bash
# packages.sh : install what the node and its images need from Debian if it is missing and we have the rights.
set -euo pipefail

declare -A package=(
  [runc]=runc [ip]=iproute2 [iptables]=iptables [nsenter]=util-linux [pgrep]=procps [openssl]=openssl
  [curl]=curl [gcc]=gcc [buildah]=buildah [mmdebstrap]=mmdebstrap [/usr/lib/cni/bridge]=containernetworking-plugins
)
missing=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
[ ${#missing[@]} = 0 ] && exit

exec bash "$(dirname "$0")/../debian.sh" "${missing[@]}"
