#!/usr/bin/env bash
# node.sh COMMAND... : run a real Kubernetes of one node, control plane included, in a sandbox on this machine. Needs root.
#   up               start it, or switch it on again with its old disk; returns when the node is ready
#   in COMMAND...    run a command inside, in this folder, with kubectl, kubectl vgpu and ctr in PATH and KUBECONFIG set
#   load ARCHIVE...  import images that were made since it was started
#   restart NAME...  kill programs (kubelet, containerd, kube-proxy, …), all at once; each is started again by itself
#   hold NAME...     kill programs and keep them down, until: release NAME...
#   off              cut the machine's power; its disk stays
#   down             switch it off and remove everything
#   enter            print the process id whose namespaces are the node's
# VGPU_NODE is its folder (default: build/cluster); several nodes with a folder each do not collide.
# VGPU_CARDS: the number of GPU device nodes (default 8). VGPU_OWNER: a process id; the node is removed when that process ends.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
run=$(realpath -m "${VGPU_NODE:-$here/../../build/cluster}")
name=vgpu-node-$(sha256sum <<< "$run" | cut -c1-8)
kube=$(bash "$here/build.sh" --where kubernetes)
containerd=$(bash "$here/build.sh" --where containerd)

say() { echo "cluster: $*" >&2; }
inside() {  # prints the id of the sandbox's process 1 on this machine, or nothing if it does not run
  local outer; outer=$(cat "$run/outer.pid" 2>/dev/null) || return 0
  # The id may belong to another process by now, so only a process in our cgroup counts.
  ! grep -qs ":/$name\$" "/proc/$outer/cgroup" || pgrep --parent "$outer" | head -n1 || true
}
enter() {
  local pid; pid=$(inside)
  [ -n "$pid" ] || { say "no node is running in $run"; exit 1; }
  KUBECONFIG=$run/pki/admin.kubeconfig CONTAINERD_ADDRESS=/run/containerd/containerd.sock \
    PATH=$kube:$containerd:$PATH:$(realpath -m "$here/../../.venv/bin") \
    exec nsenter --target "$pid" --mount --net --uts --ipc --pid --cgroup --wdns="${folder:-/}" -- "$@"
}
cgroups() { find /sys/fs/cgroup/*/"$name" -depth -type d 2>/dev/null || true; }

switch_off() {
  # unshare ignores TERM; killing process 1 of its namespace ends every process of the sandbox.
  local pid; pid=$(inside)
  [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
  for _ in $(seq 300); do
    cgroups | while read -r group; do rmdir "$group" 2>/dev/null || true; done
    [ -n "$(cgroups)" ] || break
    sleep 0.1
  done
  rm -f "$run/outer.pid"
  [ -z "$(cgroups)" ] || { say "still there: $(cgroups | head -n3)"; return 1; }
}

switch_on() {
  [ "$(id -u)" = 0 ] || { say "a node needs root: namespaces, cgroups, mounts"; exit 1; }
  [ -z "$(inside)" ] || { say "already running in $run"; exit 1; }
  mkdir -p "$run"
  export RUN=$run KUBE=$kube CONTAINERD=$containerd IMAGES=${VGPU_IMAGES:-$here/../../build/images} CARDS=${VGPU_CARDS:-8}
  setsid bash "$here/sandbox.sh" "$run" "$name" bash "$here/machine.sh" > "$run/machine.log" 2>&1 < /dev/null &
  local outer=$!
  echo $outer > "$run/outer.pid"
  if [ -n "${VGPU_OWNER:-}" ]; then
    setsid bash -c 'while kill -0 "$1" && kill -0 "$2"; do sleep 1; done; kill -0 "$2" && VGPU_NODE="$3" bash "$4" down' \
      bash "$VGPU_OWNER" "$outer" "$run" "$here/node.sh" >/dev/null 2>&1 < /dev/null &
  fi
  for _ in $(seq 1200); do
    [ -e "/proc/$(inside)/root/run/ready" ] && return
    kill -0 "$outer" 2>/dev/null || { tail -n 20 "$run/machine.log" >&2; switch_off; exit 1; }
    sleep 0.1
  done
  say "not ready after 120 s; see $run/log"; exit 1
}

forget() {  # ends what this process 1 calls NAME; it is started again unless it is held
  local program pids=()
  for program in "$@"; do pids+=("$(cat "$run/pids/$program")"); done
  (enter kill -KILL "${pids[@]}") || true
}

command=${1:-}; shift || true
case $command in
  up) switch_on ;;
  in) folder=$PWD; enter "$@" ;;
  enter) inside ;;
  load) for archive in "$@"; do (enter ctr -n k8s.io images import "$(realpath "$archive")") 2>&1 | grep -v -e DEPRECATION -e '^unpacking' || true; done ;;
  restart) forget "$@" ;;
  hold) for program in "$@"; do touch "$run/held/$program"; done; forget "$@" ;;
  release) for program in "$@"; do rm -f "$run/held/$program"; done ;;
  off) switch_off ;;
  down) switch_off; rm -rf "$run" ;;
  *) sed -n '2,/^set/{/^#/p}' "$0" | cut -c3- >&2; exit 2 ;;
esac
