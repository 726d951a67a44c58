#!/usr/bin/env bash
# packages.sh : what the node and its images need from Debian, installed when it is missing and we may.
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

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
echo "cluster: installing ${missing[*]}" >&2
as_root apt-get update -qq && DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || {
  echo "cluster: please install: ${missing[*]}" >&2; exit 1; }
