#!/usr/bin/env bash
# debian.sh PACKAGE ... : install Debian packages if we have the rights. It waits up to five minutes for another apt or
# dpkg. `DPkg::Lock::Timeout` only covers dpkg's lock, so the update, which takes the lock of the package lists, is
# retried.
set -euo pipefail
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
apt() { DEBIAN_FRONTEND=noninteractive as_root apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }

echo "installing $*" >&2
for attempt in $(seq 30); do
  if apt update; then
    apt install -y --no-install-recommends "$@" >/dev/null && exit
    break
  fi
  [ "$attempt" = 30 ] || sleep 10
done
echo "please install: $*" >&2
exit 1
